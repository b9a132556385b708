package triptych_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	triptych "github.com/triptych-ai/triptych/clients/go"
	triptychv1 "github.com/triptych-ai/triptych/gen/go/triptych/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

type chatStreamServer = triptychv1.GenerationService_ChatStreamServer

// fakeServer is a frontend that does what a test says, and counts the calls.
type fakeServer struct {
	triptychv1.UnimplementedGenerationServiceServer
	chat       func(context.Context, *triptychv1.ChatRequest) (*triptychv1.ChatResponse, error)
	chatStream func(chatStreamServer) error
	calls      int32
	address    string
	stop       func()
}

func (s *fakeServer) Chat(ctx context.Context, request *triptychv1.ChatRequest) (*triptychv1.ChatResponse, error) {
	atomic.AddInt32(&s.calls, 1)
	return s.chat(ctx, request)
}

func (s *fakeServer) ChatStream(_ *triptychv1.ChatStreamRequest, stream chatStreamServer) error {
	atomic.AddInt32(&s.calls, 1)
	return s.chatStream(stream)
}

func (s *fakeServer) Describe(
	ctx context.Context, _ *triptychv1.GenerationServiceDescribeRequest,
) (*triptychv1.GenerationServiceDescribeResponse, error) {
	return &triptychv1.GenerationServiceDescribeResponse{Instance: &triptychv1.Instance{Id: sent(ctx, "authorization")}}, nil
}

func (s *fakeServer) numCalls() int { return int(atomic.LoadInt32(&s.calls)) }

// start serves until the test ends.
func start(t *testing.T, server *fakeServer, options ...grpc.ServerOption) *fakeServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	grpcServer := grpc.NewServer(append(options, grpc.MaxRecvMsgSize(triptych.MaxMessageBytes))...)
	triptychv1.RegisterGenerationServiceServer(grpcServer, server)
	go grpcServer.Serve(listener)
	t.Cleanup(grpcServer.Stop)
	server.address, server.stop = listener.Addr().String(), grpcServer.Stop
	return server
}

// newClient returns a client of the server, with short pauses between attempts.
func newClient(t *testing.T, address string, options ...triptych.Option) *triptych.Client {
	t.Helper()
	retry := triptych.WithRetry(triptych.Retry{InitialBackoff: 10 * time.Millisecond})
	client, err := triptych.NewClient(append([]triptych.Option{triptych.WithAddress(address), retry}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// testContext keeps a test that hangs from hanging for long.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// sent returns a value of the metadata that a call came with.
func sent(ctx context.Context, key string) string {
	received, _ := metadata.FromIncomingContext(ctx)
	if values := received.Get(key); len(values) > 0 {
		return values[0]
	}
	return ""
}

func textDelta(index uint32, text string) *triptychv1.ChoiceDelta {
	return &triptychv1.ChoiceDelta{Index: index, Delta: &triptychv1.ChoiceDelta_Text{Text: text}}
}

func deltas(choices ...*triptychv1.ChoiceDelta) *triptychv1.ChatStreamResponse {
	return &triptychv1.ChatStreamResponse{RequestId: "id", Model: "model", Choices: choices}
}

func answerText(text string) *triptychv1.ChatResponse {
	return &triptychv1.ChatResponse{Choices: []*triptychv1.Choice{{Text: text}}}
}

func waitFor(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("waited 10 s for %s", what)
	}
}
