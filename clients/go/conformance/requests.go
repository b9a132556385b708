package main

import (
	"context"
	"fmt"
	"time"

	triptych "github.com/triptych-ai/triptych/clients/go"
	conformancev1 "github.com/triptych-ai/triptych/gen/go/triptych/conformance/v1"
	triptychv1 "github.com/triptych-ai/triptych/gen/go/triptych/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// request makes the call that is asked for, and puts what comes of it into the outcome.
func request(ctx context.Context, client *triptych.Client, call *conformancev1.Call, outcome *conformancev1.Outcome) error {
	switch wanted := call.GetRequest().(type) {
	case *conformancev1.Call_ChatStream:
		stream, err := client.ChatStream(ctx, wanted.ChatStream)
		if err != nil {
			return err
		}
		outcome.ChatStream, err = read[*triptychv1.ChatStreamResponse](stream, call)
		outcome.Chat, outcome.TrailingMedia = stream.Response(), stream.TrailingMedia()
		return err
	case *conformancev1.Call_CompleteStream:
		stream, err := client.CompleteStream(ctx, wanted.CompleteStream)
		if err != nil {
			return err
		}
		outcome.CompleteStream, err = read[*triptychv1.CompleteStreamResponse](stream, call)
		outcome.Complete, outcome.TrailingMedia = stream.Response(), stream.TrailingMedia()
		return err
	}
	var trailer metadata.MD
	err := unary(ctx, client, call, outcome, grpc.Trailer(&trailer))
	outcome.TrailingMedia = triptych.TrailingMedia(trailer)
	return err
}

// stream is what the program uses of a triptych.Stream.
type stream[Part any] interface {
	Next() bool
	Current() Part
	Err() error
	Close() error
}

// read reads a stream as the call asks for: it pauses after the first response, and closes the stream after the last one that is
// wanted.
func read[Part any](responses stream[Part], call *conformancev1.Call) ([]Part, error) {
	defer responses.Close()
	var parts []Part
	for responses.Next() {
		parts = append(parts, responses.Current())
		if call.CancelAfterResponses != nil && len(parts) == int(call.GetCancelAfterResponses()) {
			return parts, nil
		}
		if len(parts) == 1 {
			time.Sleep(seconds(call.GetPauseS()))
		}
	}
	return parts, responses.Err()
}

func unary(
	ctx context.Context, client *triptych.Client, call *conformancev1.Call, outcome *conformancev1.Outcome, option grpc.CallOption,
) (err error) {
	switch wanted := call.GetRequest().(type) {
	case *conformancev1.Call_Chat:
		outcome.Chat, err = client.Chat(ctx, wanted.Chat, option)
	case *conformancev1.Call_Complete:
		outcome.Complete, err = client.Complete(ctx, wanted.Complete, option)
	case *conformancev1.Call_Embed:
		outcome.Embed, err = client.Embed(ctx, wanted.Embed, option)
	case *conformancev1.Call_Score:
		outcome.Score, err = client.Score(ctx, wanted.Score, option)
	case *conformancev1.Call_Classify:
		outcome.Classify, err = client.Classify(ctx, wanted.Classify, option)
	case *conformancev1.Call_Tokenize:
		outcome.Tokenize, err = client.Tokenize(ctx, wanted.Tokenize, option)
	case *conformancev1.Call_Detokenize:
		outcome.Detokenize, err = client.Detokenize(ctx, wanted.Detokenize, option)
	case *conformancev1.Call_Preprocess:
		outcome.Preprocess, err = client.Preprocess(ctx, wanted.Preprocess, option)
	case *conformancev1.Call_ListModels:
		outcome.ListModels, err = client.ListModels(ctx, wanted.ListModels, option)
	default:
		return fmt.Errorf("a call of type %T is not known", wanted)
	}
	return err
}
