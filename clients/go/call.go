package triptych

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

const (
	requestIDKey     = "x-request-id"
	authorizationKey = "authorization"
)

// WithRequestID returns a context whose calls send this x-request-id, by which the services' logs name them. Calls without an id
// get a random one. Errors and responses have the id.
func WithRequestID(ctx context.Context, id string) context.Context {
	sent, _ := metadata.FromOutgoingContext(ctx)
	sent = sent.Copy()
	sent.Set(requestIDKey, id)
	return metadata.NewOutgoingContext(ctx, sent)
}

// caller gives each call of a connection its metadata and its deadline, and its errors their type. It does so in interceptors, so
// that calls by other stubs get the same.
type caller struct {
	apiKey  string
	timeout time.Duration
}

// start returns the context of one call, its request id, and what releases its timer.
func (c caller) start(ctx context.Context) (context.Context, string, context.CancelFunc, error) {
	sent, _ := metadata.FromOutgoingContext(ctx)
	var id string
	if ids := sent.Get(requestIDKey); len(ids) > 0 {
		id = ids[0]
	} else {
		id = newRequestID()
		ctx = metadata.AppendToOutgoingContext(ctx, requestIDKey, id)
	}
	if !isPrintable(id) {
		message := requestIDKey + " has characters that are not printable ASCII"
		return nil, "", nil, &Error{Kind: ErrInvalidRequest, Code: codes.InvalidArgument, Message: message, Field: requestIDKey}
	}
	if c.apiKey != "" && len(sent.Get(authorizationKey)) == 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, authorizationKey, "Bearer "+c.apiKey)
	}
	if _, has := ctx.Deadline(); !has && c.timeout > 0 {
		ctx, cancel := context.WithTimeout(ctx, c.timeout)
		return ctx, id, cancel, nil
	}
	return ctx, id, func() {}, nil
}

func (c caller) unary(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	ctx, id, release, err := c.start(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := checkSize(request, id); err != nil {
		return err
	}
	return receivedError(invoke(ctx, method, request, reply, conn, options...), id)
}

func (c caller) stream(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	ctx, id, release, err := c.start(ctx)
	if err != nil {
		return nil, err
	}
	stream, err := open(ctx, desc, conn, method, options...)
	if err != nil {
		release()
		return nil, receivedError(err, id)
	}
	return &callStream{ClientStream: stream, id: id, release: release, answersOnce: !desc.ServerStreams}, nil
}

// callStream is a stream of gRPC with errors of this package.
type callStream struct {
	grpc.ClientStream
	id          string
	release     context.CancelFunc
	answersOnce bool
}

func (s *callStream) SendMsg(message any) error {
	if err := checkSize(message, s.id); err != nil {
		return err
	}
	return receivedError(s.ClientStream.SendMsg(message), s.id)
}

func (s *callStream) RecvMsg(message any) error {
	err := s.ClientStream.RecvMsg(message)
	if err != nil || s.answersOnce {
		s.release()
	}
	return receivedError(err, s.id)
}

// checkSize refuses what gRPC would not send. gRPC's own error would be that of a server with a full queue.
func checkSize(message any, id string) error {
	encoded, is := message.(proto.Message)
	if !is {
		return nil
	}
	size := proto.Size(encoded)
	if size <= MaxMessageBytes {
		return nil
	}
	return &Error{
		Kind:      ErrInvalidRequest,
		Code:      codes.InvalidArgument,
		Message:   fmt.Sprintf("the request has %d bytes, more than %d; send large media with UploadMedia", size, MaxMessageBytes),
		Limit:     strconv.Itoa(MaxMessageBytes),
		Value:     strconv.Itoa(size),
		RequestID: id,
	}
}

func newRequestID() string {
	var random [16]byte
	// It cannot fail on any system that Go supports.
	_, _ = rand.Read(random[:])
	return hex.EncodeToString(random[:])
}

// isPrintable tells whether gRPC can send a text as metadata.
func isPrintable(text string) bool {
	for i := 0; i < len(text); i++ {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}
