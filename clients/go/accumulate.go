package triptych

import (
	"sort"
	"strings"

	triptychv1 "github.com/triptych-ai/triptych/gen/go/triptych/v1"
)

// merged is what the responses of a stream add up to. Text is kept in pieces: joined after each response, its cost would grow
// with the square of its length.
type merged struct {
	requestID, model string
	choices          map[uint32]*mergedChoice
	usage            *triptychv1.Usage
	timings          *triptychv1.Timings
	media            []*triptychv1.MediaReport
}

type mergedChoice struct {
	text, reasoning strings.Builder
	toolCalls       map[uint32]*mergedToolCall
	// rest has the other fields, as the last delta with each of them set it.
	rest triptychv1.Choice
}

type mergedToolCall struct {
	id, name   string
	arguments  strings.Builder
	incomplete bool
}

func (m *merged) add(response streamResponse) {
	if id := response.GetRequestId(); id != "" {
		m.requestID = id
	}
	if model := response.GetModel(); model != "" {
		m.model = model
	}
	for _, delta := range response.GetChoices() {
		m.choice(delta.GetIndex()).add(delta)
	}
	if response.GetUsage() != nil {
		m.usage, m.timings, m.media = response.GetUsage(), response.GetTimings(), response.GetMedia()
	}
}

func (m *merged) choice(index uint32) *mergedChoice {
	if m.choices == nil {
		m.choices = map[uint32]*mergedChoice{}
	}
	choice := m.choices[index]
	if choice == nil {
		choice = &mergedChoice{}
		m.choices[index] = choice
	}
	return choice
}

func (c *mergedChoice) add(delta *triptychv1.ChoiceDelta) {
	switch piece := delta.GetDelta().(type) {
	case *triptychv1.ChoiceDelta_Text:
		c.text.WriteString(piece.Text)
	case *triptychv1.ChoiceDelta_Reasoning:
		c.reasoning.WriteString(piece.Reasoning)
	case *triptychv1.ChoiceDelta_ToolCall:
		c.toolCall(piece.ToolCall.GetIndex()).add(piece.ToolCall)
	}
	c.rest.TokenIds = append(c.rest.TokenIds, delta.GetTokenIds()...)
	c.rest.Logprobs = append(c.rest.Logprobs, delta.GetLogprobs()...)
	c.rest.PromptLogprobs = append(c.rest.PromptLogprobs, delta.GetPromptLogprobs()...)
	if reason := delta.GetFinishReason(); reason != triptychv1.FinishReason_FINISH_REASON_UNSPECIFIED {
		c.rest.FinishReason = reason
	}
	switch stop := delta.GetMatchedStop().(type) {
	case *triptychv1.ChoiceDelta_StopText:
		c.rest.MatchedStop = &triptychv1.Choice_StopText{StopText: stop.StopText}
	case *triptychv1.ChoiceDelta_StopTokenId:
		c.rest.MatchedStop = &triptychv1.Choice_StopTokenId{StopTokenId: stop.StopTokenId}
	}
}

func (c *mergedChoice) toolCall(index uint32) *mergedToolCall {
	if c.toolCalls == nil {
		c.toolCalls = map[uint32]*mergedToolCall{}
	}
	call := c.toolCalls[index]
	if call == nil {
		call = &mergedToolCall{}
		c.toolCalls[index] = call
	}
	return call
}

// add takes a piece of a call. Its id and name are those of the first piece that has them.
func (t *mergedToolCall) add(delta *triptychv1.ToolCallDelta) {
	if t.id == "" {
		t.id = delta.GetId()
	}
	if t.name == "" {
		t.name = delta.GetName()
	}
	t.arguments.WriteString(delta.GetArguments())
	t.incomplete = delta.GetIncomplete()
}

func (m *merged) wholeChoices() []*triptychv1.Choice {
	var choices []*triptychv1.Choice
	for _, index := range sortedKeys(m.choices) {
		choices = append(choices, m.choices[index].whole(index))
	}
	return choices
}

func (c *mergedChoice) whole(index uint32) *triptychv1.Choice {
	choice := &triptychv1.Choice{
		Index:          index,
		Text:           c.text.String(),
		Reasoning:      c.reasoning.String(),
		TokenIds:       append([]uint32(nil), c.rest.TokenIds...),
		Logprobs:       append([]*triptychv1.TokenLogprob(nil), c.rest.Logprobs...),
		PromptLogprobs: append([]*triptychv1.TokenLogprob(nil), c.rest.PromptLogprobs...),
		FinishReason:   c.rest.FinishReason,
		MatchedStop:    c.rest.MatchedStop,
	}
	for _, key := range sortedKeys(c.toolCalls) {
		call := c.toolCalls[key]
		choice.ToolCalls = append(choice.ToolCalls, &triptychv1.ToolCall{
			Id: call.id, Name: call.name, Arguments: call.arguments.String(), Incomplete: call.incomplete,
		})
	}
	return choice
}

func sortedKeys[Value any](values map[uint32]Value) []uint32 {
	keys := make([]uint32, 0, len(values))
	for key := range values {
		keys = append(keys, key)
	}
	sort.Slice(keys, func(i, j int) bool { return keys[i] < keys[j] })
	return keys
}

func chatAnswer(m *merged) *triptychv1.ChatResponse {
	return &triptychv1.ChatResponse{
		RequestId: m.requestID, Model: m.model, Choices: m.wholeChoices(), Usage: m.usage, Timings: m.timings, Media: m.media,
	}
}

func completeAnswer(m *merged) *triptychv1.CompleteResponse {
	return &triptychv1.CompleteResponse{
		RequestId: m.requestID, Model: m.model, Choices: m.wholeChoices(), Usage: m.usage, Timings: m.timings, Media: m.media,
	}
}
