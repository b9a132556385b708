// Package triptych is a client of Triptych's frontend, on gRPC.
//
//	client, err := triptych.NewClient(triptych.WithAddress("127.0.0.1:50051"))
//	if err != nil { ... }
//	defer client.Close()
//	answer, err := client.Chat(ctx, &triptychv1.ChatRequest{
//		Messages: []*triptychv1.ChatMessage{triptych.Message("user", triptych.Text("What is the capital of France?"))},
//	})
//
// Requests and responses are the messages of protos/triptych/v1, whose comments are the reference. Failed calls return an *Error.
// The deadline and the cancellation of a call are those of its context.
package triptych

import (
	"context"

	triptychv1 "github.com/triptych-ai/triptych/gen/go/triptych/v1"
	"google.golang.org/grpc"
)

// Client makes the calls of a frontend. It may be used by many goroutines at once.
type Client struct {
	conn       *grpc.ClientConn
	generation triptychv1.GenerationServiceClient
	preprocess triptychv1.PreprocessServiceClient
	detokenize triptychv1.DetokenizeServiceClient
}

// NewClient returns a client that connects at its first call, and again after each loss of a connection. It fails if an option is
// not valid.
func NewClient(options ...Option) (*Client, error) {
	settings := defaultSettings()
	for _, option := range options {
		option(&settings)
	}
	conn, err := dial(settings)
	if err != nil {
		return nil, err
	}
	return &Client{
		conn:       conn,
		generation: triptychv1.NewGenerationServiceClient(conn),
		preprocess: triptychv1.NewPreprocessServiceClient(conn),
		detokenize: triptychv1.NewDetokenizeServiceClient(conn),
	}, nil
}

// Close ends the client's connections, and with them its calls.
func (c *Client) Close() error { return c.conn.Close() }

// Conn returns the connection, for stubs of calls that have no method here. They get the same key, request ids, retries and
// errors.
func (c *Client) Conn() grpc.ClientConnInterface { return c.conn }

// Chat returns the assistant's turn when all choices have ended.
func (c *Client) Chat(ctx context.Context, request *triptychv1.ChatRequest, options ...grpc.CallOption) (*triptychv1.ChatResponse, error) {
	return c.generation.Chat(ctx, request, options...)
}

// Complete returns the continuation of a prompt when all choices have ended.
func (c *Client) Complete(ctx context.Context, request *triptychv1.CompleteRequest, options ...grpc.CallOption) (*triptychv1.CompleteResponse, error) {
	return c.generation.Complete(ctx, request, options...)
}

// ChatStream returns the assistant's turn as it is generated. Close the stream, or cancel ctx, if it is not read to its end.
func (c *Client) ChatStream(ctx context.Context, request *triptychv1.ChatStreamRequest, options ...grpc.CallOption) (*ChatStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	source, err := c.generation.ChatStream(ctx, request, options...)
	if err != nil {
		cancel()
		return nil, err
	}
	return &ChatStream{source: source, cancel: cancel, answer: chatAnswer}, nil
}

// CompleteStream returns the continuation of a prompt as it is generated. Close the stream, or cancel ctx, if it is not read to
// its end.
func (c *Client) CompleteStream(ctx context.Context, request *triptychv1.CompleteStreamRequest, options ...grpc.CallOption) (*CompleteStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	source, err := c.generation.CompleteStream(ctx, request, options...)
	if err != nil {
		cancel()
		return nil, err
	}
	return &CompleteStream{source: source, cancel: cancel, answer: completeAnswer}, nil
}

// Embed returns a vector for each input, in their order.
func (c *Client) Embed(ctx context.Context, request *triptychv1.EmbedRequest, options ...grpc.CallOption) (*triptychv1.EmbedResponse, error) {
	return c.generation.Embed(ctx, request, options...)
}

// Score returns how well each document fits its query, in the order of the documents.
func (c *Client) Score(ctx context.Context, request *triptychv1.ScoreRequest, options ...grpc.CallOption) (*triptychv1.ScoreResponse, error) {
	return c.generation.Score(ctx, request, options...)
}

// Classify returns a value for each label of the model, for each input.
func (c *Client) Classify(ctx context.Context, request *triptychv1.ClassifyRequest, options ...grpc.CallOption) (*triptychv1.ClassifyResponse, error) {
	return c.generation.Classify(ctx, request, options...)
}

// Tokenize returns the tokens of a text, without a template.
func (c *Client) Tokenize(ctx context.Context, request *triptychv1.TokenizeRequest, options ...grpc.CallOption) (*triptychv1.TokenizeResponse, error) {
	return c.preprocess.Tokenize(ctx, request, options...)
}

// Detokenize returns the text of tokens.
func (c *Client) Detokenize(ctx context.Context, request *triptychv1.DetokenizeRequest, options ...grpc.CallOption) (*triptychv1.DetokenizeResponse, error) {
	return c.detokenize.Detokenize(ctx, request, options...)
}

// Preprocess returns the prompt that the engine would get: text, tokens, placeholders, references to media. Nothing is generated.
func (c *Client) Preprocess(ctx context.Context, request *triptychv1.PreprocessRequest, options ...grpc.CallOption) (*triptychv1.PreprocessResponse, error) {
	return c.preprocess.Preprocess(ctx, request, options...)
}

// ListModels returns the models that a request can name.
func (c *Client) ListModels(ctx context.Context, request *triptychv1.ListModelsRequest, options ...grpc.CallOption) (*triptychv1.ListModelsResponse, error) {
	return c.generation.ListModels(ctx, request, options...)
}
