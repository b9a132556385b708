package triptych_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	triptych "github.com/triptych-ai/triptych/clients/go"
	triptychv1 "github.com/triptych-ai/triptych/gen/go/triptych/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// failing answers the first calls with an error, and later ones with a text.
func failing(times int, err error, trailer metadata.MD) *fakeServer {
	server := &fakeServer{}
	server.chat = func(ctx context.Context, _ *triptychv1.ChatRequest) (*triptychv1.ChatResponse, error) {
		if server.numCalls() > times {
			return answerText("at last"), nil
		}
		if trailer != nil {
			_ = grpc.SetTrailer(ctx, trailer)
		}
		return nil, err
	}
	return server
}

func chatError(t *testing.T, server *fakeServer, options ...triptych.Option) *triptych.Error {
	t.Helper()
	client := newClient(t, start(t, server).address, options...)
	_, err := client.Chat(triptych.WithRequestID(testContext(t), "sent"), &triptychv1.ChatRequest{})
	var failed *triptych.Error
	if !errors.As(err, &failed) {
		t.Fatalf("the error is %v", err)
	}
	return failed
}

func TestRetries(t *testing.T) {
	full := status.Error(codes.ResourceExhausted, "full")
	down := status.Error(codes.Unavailable, "down")
	pause := metadata.Pairs("grpc-retry-pushback-ms", "200")
	never := metadata.Pairs("grpc-retry-pushback-ms", "-1")
	off := triptych.WithRetry(triptych.Retry{MaxAttempts: 1})
	for name, want := range map[string]struct {
		server   *fakeServer
		options  []triptych.Option
		calls    int
		answered bool
		atLeast  time.Duration
	}{
		"unavailable":   {failing(2, down, nil), nil, 3, true, 0},
		"bounded":       {failing(9, down, nil), nil, 4, false, 0},
		"full":          {failing(1, full, nil), nil, 2, true, 0},
		"after a pause": {failing(1, full, pause), nil, 2, true, 200 * time.Millisecond},
		"forbidden":     {failing(1, full, never), nil, 1, false, 0},
		"invalid":       {failing(1, status.Error(codes.InvalidArgument, "no"), nil), nil, 1, false, 0},
		"off":           {failing(1, down, nil), []triptych.Option{off}, 1, false, 0},
	} {
		want := want
		t.Run(name, func(t *testing.T) {
			client := newClient(t, start(t, want.server).address, want.options...)
			begin := time.Now()
			_, err := client.Chat(testContext(t), &triptychv1.ChatRequest{})
			if got := want.server.numCalls(); got != want.calls || (err == nil) != want.answered {
				t.Errorf("%d calls, and the error %v", got, err)
			}
			if took := time.Since(begin); took < want.atLeast {
				t.Errorf("the call took %v", took)
			}
		})
	}
}

func TestErrorDetails(t *testing.T) {
	described, err := status.New(codes.InvalidArgument, "too long").WithDetails(
		&errdetails.ErrorInfo{
			Reason: "CONTEXT_LENGTH_EXCEEDED", Domain: "triptych",
			Metadata: map[string]string{"field": "messages", "limit": "10", "value": "11"},
		},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(1500 * time.Millisecond)},
		&errdetails.RequestInfo{RequestId: "replaced"},
	)
	if err != nil {
		t.Fatal(err)
	}
	failed := chatError(t, failing(9, described.Err(), nil))
	if failed.Kind != triptych.ErrContextLength || !errors.Is(failed, triptych.ErrInvalidRequest) || errors.Is(failed, triptych.ErrNeverFits) {
		t.Errorf("the kind is %v", failed.Kind)
	}
	if failed.Message != "too long" || failed.Reason != "CONTEXT_LENGTH_EXCEEDED" || !failed.HasDetails || failed.RequestID != "replaced" {
		t.Errorf("the error is %+v", failed)
	}
	if failed.Field != "messages" || failed.Limit != "10" || failed.Value != "11" {
		t.Errorf("the field is %q, the limit %q, the value %q", failed.Field, failed.Limit, failed.Value)
	}
	if failed.RetryAfter == nil || *failed.RetryAfter != 1500*time.Millisecond {
		t.Errorf("try again after %v", failed.RetryAfter)
	}
	if status.Code(failed) != codes.InvalidArgument || len(status.Convert(failed).Details()) != 3 {
		t.Errorf("gRPC's status is %v", status.Convert(failed))
	}
}

func TestErrorWithoutDetails(t *testing.T) {
	failed := chatError(t, failing(9, status.Error(codes.Unavailable, "down"), nil))
	if failed.Kind != triptych.ErrServiceUnavailable || failed.Message != "down" || failed.Reason != "" || failed.HasDetails {
		t.Errorf("the error is %+v", failed)
	}
	if failed.RetryAfter != nil || failed.RequestID != "sent" || !strings.Contains(failed.Error(), "request sent") {
		t.Errorf("the error is %v", failed)
	}
}

func TestTooLarge(t *testing.T) {
	large := &triptychv1.ChatRequest{Model: strings.Repeat("x", triptych.MaxMessageBytes)}
	server := start(t, failing(0, nil, nil))
	_, err := newClient(t, server.address).Chat(testContext(t), large)
	if !errors.Is(err, triptych.ErrInvalidRequest) || server.numCalls() != 0 {
		t.Errorf("a large request: %v after %d calls", err, server.numCalls())
	}
	answer := &fakeServer{chat: func(context.Context, *triptychv1.ChatRequest) (*triptychv1.ChatResponse, error) {
		return answerText(large.Model), nil
	}}
	if failed := chatError(t, answer); failed.Kind != triptych.ErrInternal || failed.Code != codes.ResourceExhausted {
		t.Errorf("a large answer: %v", failed)
	}
}

func TestCancel(t *testing.T) {
	started, ended := make(chan struct{}), make(chan struct{})
	server := start(t, &fakeServer{chat: func(ctx context.Context, _ *triptychv1.ChatRequest) (*triptychv1.ChatResponse, error) {
		close(started)
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	}})
	ctx, cancel := context.WithCancel(testContext(t))
	go func() {
		<-started
		cancel()
	}()
	_, err := newClient(t, server.address).Chat(ctx, &triptychv1.ChatRequest{})
	if !errors.Is(err, triptych.ErrRequestAborted) || !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	waitFor(t, "the end of the server's call", ended)
}
