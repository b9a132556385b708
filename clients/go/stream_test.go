package triptych_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	triptych "github.com/triptych-ai/triptych/clients/go"
	triptychv1 "github.com/triptych-ai/triptych/gen/go/triptych/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// openStream starts a call of a server that sends these responses, and then returns this error.
func openStream(t *testing.T, end error, responses ...*triptychv1.ChatStreamResponse) *triptych.ChatStream {
	t.Helper()
	return openStreamOf(t, func(stream chatStreamServer) error {
		for _, response := range responses {
			if err := stream.Send(response); err != nil {
				return err
			}
		}
		return end
	})
}

func openStreamOf(t *testing.T, serve func(chatStreamServer) error) *triptych.ChatStream {
	t.Helper()
	client := newClient(t, start(t, &fakeServer{chatStream: serve}).address)
	stream, err := client.ChatStream(testContext(t), &triptychv1.ChatStreamRequest{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stream.Close() })
	return stream
}

func TestStream(t *testing.T) {
	stream := openStream(t, nil, deltas(textDelta(0, "one"), textDelta(1, "other")), deltas(textDelta(0, " two")), deltas())
	var texts []string
	for stream.Next() {
		texts = append(texts, stream.Text())
		if stream.Current().GetModel() != "model" {
			t.Errorf("the response is %v", stream.Current())
		}
	}
	if got := strings.Join(texts, "|"); got != "one| two|" || stream.Err() != nil {
		t.Errorf("read %q, and the error %v", got, stream.Err())
	}
	if response, err := stream.Recv(); response != nil || err != io.EOF || stream.Text() != "" {
		t.Errorf("after the end: %v, %v", response, err)
	}
}

func TestStreamFails(t *testing.T) {
	stream := openStream(t, status.Error(codes.Internal, "broken"), deltas(textDelta(0, "one")))
	for stream.Next() {
	}
	if !errors.Is(stream.Err(), triptych.ErrInternal) {
		t.Errorf("the error is %v", stream.Err())
	}
	if text := stream.Response().GetChoices()[0].GetText(); text != "one" {
		t.Errorf("what came before is %q", text)
	}
	if _, err := stream.Recv(); err != stream.Err() {
		t.Errorf("after the end: %v", err)
	}
}

func TestStreamRetries(t *testing.T) {
	server := &fakeServer{}
	server.chatStream = func(stream chatStreamServer) error {
		if server.numCalls() < 3 {
			return status.Error(codes.Unavailable, "down")
		}
		return stream.Send(deltas(textDelta(0, "at last")))
	}
	stream, err := newClient(t, start(t, server).address).ChatStream(testContext(t), &triptychv1.ChatStreamRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Next() || stream.Text() != "at last" {
		t.Errorf("read %q, and the error %v", stream.Text(), stream.Err())
	}
}

func TestStreamClose(t *testing.T) {
	ended := make(chan struct{})
	stream := openStreamOf(t, func(stream chatStreamServer) error {
		defer close(ended)
		for stream.Context().Err() == nil {
			if err := stream.Send(deltas(textDelta(0, "more"))); err != nil {
				return err
			}
		}
		return nil
	})
	if !stream.Next() {
		t.Fatal(stream.Err())
	}
	stream.Close()
	waitFor(t, "the end of the server's call", ended)
	for stream.Next() {
	}
	if !errors.Is(stream.Err(), context.Canceled) || !errors.Is(stream.Err(), triptych.ErrRequestAborted) {
		t.Errorf("the error is %v", stream.Err())
	}
	stream.Close()
}

func TestSlowReader(t *testing.T) {
	const bytes, total = 64 << 10, 256
	var sentResponses int32
	stream := openStreamOf(t, func(stream chatStreamServer) error {
		for i := 0; i < total; i++ {
			if err := stream.Send(deltas(textDelta(0, strings.Repeat("x", bytes)))); err != nil {
				return err
			}
			atomic.AddInt32(&sentResponses, 1)
		}
		return nil
	})
	time.Sleep(500 * time.Millisecond)
	// A MiB waits in the client, and gRPC's server keeps some more.
	if ahead := atomic.LoadInt32(&sentResponses); ahead > 64 {
		t.Errorf("the server sent %d of %d responses to a reader that pauses", ahead, total)
	}
	for stream.Next() {
	}
	if got := len(stream.Response().GetChoices()[0].GetText()); got != bytes*total || stream.Err() != nil {
		t.Errorf("read %d bytes, and the error %v", got, stream.Err())
	}
}

func TestStreamTrailingMedia(t *testing.T) {
	stream := openStreamOf(t, func(stream chatStreamServer) error {
		report, err := proto.Marshal(&triptychv1.MediaReport{NumTokens: 7})
		stream.SetTrailer(metadata.Pairs("triptych-media-bin", string(report)))
		return err
	})
	if reports := stream.TrailingMedia(); reports != nil {
		t.Errorf("before the end: %v", reports)
	}
	for stream.Next() {
	}
	if reports := stream.TrailingMedia(); len(reports) != 1 || reports[0].GetNumTokens() != 7 {
		t.Errorf("the reports are %v", reports)
	}
}
