package triptych_test

import (
	"testing"

	triptychv1 "github.com/triptych-ai/triptych/gen/go/triptych/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

func reasoningDelta(text string) *triptychv1.ChoiceDelta {
	return &triptychv1.ChoiceDelta{Delta: &triptychv1.ChoiceDelta_Reasoning{Reasoning: text}}
}

func callDelta(call *triptychv1.ToolCallDelta) *triptychv1.ChoiceDelta {
	return &triptychv1.ChoiceDelta{Delta: &triptychv1.ChoiceDelta_ToolCall{ToolCall: call}}
}

func TestAccumulate(t *testing.T) {
	prompt := &triptychv1.TokenLogprob{TokenId: 1}
	token := &triptychv1.TokenLogprob{TokenId: 2}
	last := deltas(&triptychv1.ChoiceDelta{
		TokenIds:     []uint32{3},
		FinishReason: triptychv1.FinishReason_FINISH_REASON_STOP,
		MatchedStop:  &triptychv1.ChoiceDelta_StopText{StopText: "."},
	})
	last.Usage = &triptychv1.Usage{CompletionTokens: 5}
	last.Timings = &triptychv1.Timings{DecodeS: 1}
	last.Media = []*triptychv1.MediaReport{{NumTokens: 7}}
	stream := openStream(t, nil,
		deltas(&triptychv1.ChoiceDelta{Index: 2, Delta: &triptychv1.ChoiceDelta_Text{Text: "c"}, PromptTokens: proto.Uint32(9)}),
		deltas(reasoningDelta("think"), reasoningDelta("ing"), &triptychv1.ChoiceDelta{
			TokenIds: []uint32{1, 2}, Logprobs: []*triptychv1.TokenLogprob{token}, PromptLogprobs: []*triptychv1.TokenLogprob{prompt},
		}),
		deltas(callDelta(&triptychv1.ToolCallDelta{Index: 1, Id: "second", Name: "g", Arguments: "{"})),
		deltas(callDelta(&triptychv1.ToolCallDelta{Id: "first", Name: "f", Arguments: "{"})),
		deltas(callDelta(&triptychv1.ToolCallDelta{Arguments: "}"}), callDelta(&triptychv1.ToolCallDelta{Index: 1, Incomplete: true})),
		deltas(textDelta(0, "a"), textDelta(0, "b")),
		last,
	)
	for stream.Next() {
	}
	want := &triptychv1.ChatResponse{
		RequestId: "id",
		Model:     "model",
		Choices: []*triptychv1.Choice{
			{
				Text:      "ab",
				Reasoning: "thinking",
				ToolCalls: []*triptychv1.ToolCall{
					{Id: "first", Name: "f", Arguments: "{}"},
					{Id: "second", Name: "g", Arguments: "{", Incomplete: true},
				},
				TokenIds:       []uint32{1, 2, 3},
				Logprobs:       []*triptychv1.TokenLogprob{token},
				PromptLogprobs: []*triptychv1.TokenLogprob{prompt},
				FinishReason:   triptychv1.FinishReason_FINISH_REASON_STOP,
				MatchedStop:    &triptychv1.Choice_StopText{StopText: "."},
			},
			{Index: 2, Text: "c"},
		},
		Usage:   last.Usage,
		Timings: last.Timings,
		Media:   last.Media,
	}
	if got := stream.Response(); !proto.Equal(got, want) {
		t.Errorf("got\n%s\ninstead of\n%s", prototext.Format(got), prototext.Format(want))
	}
}

func TestAccumulateWhileItGrows(t *testing.T) {
	stream := openStream(t, nil, deltas(textDelta(0, "a")), deltas(textDelta(0, "b")))
	if choices := stream.Response().GetChoices(); len(choices) != 0 {
		t.Errorf("before the first response: %v", choices)
	}
	stream.Next()
	early := stream.Response()
	stream.Next()
	if early.GetChoices()[0].GetText() != "a" || stream.Response().GetChoices()[0].GetText() != "ab" {
		t.Errorf("the answer was %v, then %v", early, stream.Response())
	}
}
