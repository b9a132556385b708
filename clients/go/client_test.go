package triptych_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	triptych "github.com/triptych-ai/triptych/clients/go"
	triptychv1 "github.com/triptych-ai/triptych/gen/go/triptych/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// echoMetadata answers a chat with the value of a key.
func echoMetadata(key string) *fakeServer {
	return &fakeServer{chat: func(ctx context.Context, _ *triptychv1.ChatRequest) (*triptychv1.ChatResponse, error) {
		return answerText(sent(ctx, key)), nil
	}}
}

func chatText(t *testing.T, ctx context.Context, client *triptych.Client) string {
	t.Helper()
	answer, err := client.Chat(ctx, &triptychv1.ChatRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetChoices()[0].GetText()
}

func TestKey(t *testing.T) {
	t.Setenv(triptych.APIKeyVariable, "")
	server := start(t, echoMetadata("authorization"))
	ctx := testContext(t)
	client := newClient(t, server.address, triptych.WithAPIKey("secret"))
	if got := chatText(t, ctx, client); got != "Bearer secret" {
		t.Errorf("the server got %q", got)
	}
	own := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer other")
	if got := chatText(t, own, client); got != "Bearer other" {
		t.Errorf("a call's own key became %q", got)
	}
	if got := chatText(t, ctx, newClient(t, server.address)); got != "" {
		t.Errorf("without a key, the server got %q", got)
	}
	described, err := triptychv1.NewGenerationServiceClient(client.Conn()).Describe(ctx, &triptychv1.GenerationServiceDescribeRequest{})
	if err != nil || described.GetInstance().GetId() != "Bearer secret" {
		t.Errorf("a call by another stub: %v, %v", described, err)
	}
}

func TestKeyThatCannotBeSent(t *testing.T) {
	_, err := triptych.NewClient(triptych.WithAPIKey("secret\n"))
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("the error is %v", err)
	}
}

func TestEnvironment(t *testing.T) {
	server := start(t, echoMetadata("authorization"))
	t.Setenv(triptych.AddressVariable, server.address)
	t.Setenv(triptych.APIKeyVariable, "from-environment")
	client, err := triptych.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if got := chatText(t, testContext(t), client); got != "Bearer from-environment" {
		t.Errorf("the server got %q", got)
	}
	if got := chatText(t, testContext(t), newClient(t, server.address, triptych.WithAPIKey(""))); got != "" {
		t.Errorf("an empty key became %q", got)
	}
}

func TestRequestID(t *testing.T) {
	client := newClient(t, start(t, echoMetadata("x-request-id")).address)
	ctx := testContext(t)
	if got := chatText(t, triptych.WithRequestID(ctx, "mine"), client); got != "mine" {
		t.Errorf("the server got %q", got)
	}
	first, second := chatText(t, ctx, client), chatText(t, ctx, client)
	if len(first) != 32 || first == second {
		t.Errorf("random ids are %q and %q", first, second)
	}
	_, err := client.Chat(triptych.WithRequestID(ctx, "a\nb"), &triptychv1.ChatRequest{})
	if !errors.Is(err, triptych.ErrInvalidRequest) {
		t.Errorf("an id that cannot be sent: %v", err)
	}
}

func TestDeadlines(t *testing.T) {
	server := start(t, &fakeServer{chat: func(ctx context.Context, _ *triptychv1.ChatRequest) (*triptychv1.ChatResponse, error) {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}})
	_, byClient := newClient(t, server.address, triptych.WithTimeout(50*time.Millisecond)).Chat(context.Background(), &triptychv1.ChatRequest{})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, byContext := newClient(t, server.address, triptych.WithTimeout(time.Hour)).Chat(ctx, &triptychv1.ChatRequest{})
	for _, err := range []error{byClient, byContext} {
		if !errors.Is(err, triptych.ErrDeadlineExceeded) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v", err)
		}
	}
}

func TestSeveralAddresses(t *testing.T) {
	answer := func(context.Context, *triptychv1.ChatRequest) (*triptychv1.ChatResponse, error) {
		return answerText("hi"), nil
	}
	first, second := start(t, &fakeServer{chat: answer}), start(t, &fakeServer{chat: answer})
	client := newClient(t, first.address+", "+second.address)
	ctx := testContext(t)
	for first.numCalls() == 0 || second.numCalls() == 0 {
		chatText(t, ctx, client)
	}
	first.stop()
	before := second.numCalls()
	for i := 0; i < 10; i++ {
		chatText(t, ctx, client)
	}
	if got := second.numCalls() - before; got != 10 {
		t.Errorf("after the first server ended, the second got %d of 10 calls", got)
	}
}

func TestTLS(t *testing.T) {
	// For its certificate, which is for 127.0.0.1.
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	security := grpc.Creds(credentials.NewServerTLSFromCert(&web.TLS.Certificates[0]))
	first, second := start(t, echoMetadata("authorization"), security), start(t, echoMetadata("authorization"), security)
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AddCert(web.Certificate())
	for _, address := range []string{first.address, first.address + "," + second.address} {
		client := newClient(t, address, triptych.WithTLS(config), triptych.WithAPIKey("secret"))
		if got := chatText(t, testContext(t), client); got != "Bearer secret" {
			t.Errorf("%s: the server got %q", address, got)
		}
	}
	stranger := newClient(t, first.address, triptych.WithTLS(&tls.Config{}))
	if _, err := stranger.Chat(testContext(t), &triptychv1.ChatRequest{}); !errors.Is(err, triptych.ErrServiceUnavailable) {
		t.Errorf("a certificate of an unknown authority: %v", err)
	}
}

func TestInvalidOptions(t *testing.T) {
	for name, option := range map[string]triptych.Option{
		"address":   triptych.WithAddress(""),
		"addresses": triptych.WithAddress("127.0.0.1:1,nonsense"),
		"attempts":  triptych.WithRetry(triptych.Retry{MaxAttempts: 6}),
		"pause":     triptych.WithRetry(triptych.Retry{MaxBackoff: -time.Second}),
	} {
		if _, err := triptych.NewClient(option); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := (triptych.TLSFiles{RootCertificates: "missing.pem"}).Config(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file of certificates: %v", err)
	}
	if _, err := (triptych.TLSFiles{Certificate: "missing.pem"}).Config(); err == nil {
		t.Error("a certificate without a key: no error")
	}
}

func TestDialOptions(t *testing.T) {
	var id string
	see := func(
		ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
	) error {
		outgoing, _ := metadata.FromOutgoingContext(ctx)
		id = outgoing.Get("x-request-id")[0]
		return invoke(ctx, method, request, reply, conn, options...)
	}
	server := start(t, echoMetadata("x-request-id"))
	client := newClient(t, server.address, triptych.WithDialOptions(grpc.WithChainUnaryInterceptor(see)))
	if got := chatText(t, testContext(t), client); got != id {
		t.Errorf("the interceptor saw %q, the server %q", id, got)
	}
}

func TestMedia(t *testing.T) {
	path := filepath.Join(t.TempDir(), "picture.png")
	if err := os.WriteFile(path, []byte("png"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := start(t, &fakeServer{chat: func(ctx context.Context, request *triptychv1.ChatRequest) (*triptychv1.ChatResponse, error) {
		report, err := proto.Marshal(&triptychv1.MediaReport{NumTokens: 7})
		if err != nil {
			return nil, err
		}
		media := request.GetMessages()[0].GetContent()[0].GetMedia()
		return answerText(media.GetModality().String() + " " + string(media.GetData())),
			grpc.SetTrailer(ctx, metadata.Pairs("triptych-media-bin", string(report)))
	}})
	picture, err := triptych.ImageFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var trailer metadata.MD
	answer, err := newClient(t, server.address).Chat(testContext(t), &triptychv1.ChatRequest{
		Messages: []*triptychv1.ChatMessage{triptych.Message("user", triptych.Media(picture), triptych.Text("What?"))},
	}, grpc.Trailer(&trailer))
	if err != nil || answer.GetChoices()[0].GetText() != "MODALITY_IMAGE png" {
		t.Errorf("the answer is %v, %v", answer, err)
	}
	if reports := triptych.TrailingMedia(trailer); len(reports) != 1 || reports[0].GetNumTokens() != 7 {
		t.Errorf("the reports are %v", reports)
	}
	if _, err := triptych.AudioFile("missing.wav"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}
