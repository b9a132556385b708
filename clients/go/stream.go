package triptych

import (
	"context"
	"io"

	triptychv1 "github.com/triptych-ai/triptych/gen/go/triptych/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

const mediaKey = "triptych-media-bin"

// ChatStream has the responses of Client.ChatStream.
type ChatStream = Stream[*triptychv1.ChatStreamResponse, *triptychv1.ChatResponse]

// CompleteStream has the responses of Client.CompleteStream.
type CompleteStream = Stream[*triptychv1.CompleteStreamResponse, *triptychv1.CompleteResponse]

// Stream has the responses of one call as they come. There are two ways to read it, Recv and Next:
//
//	defer stream.Close()
//	for stream.Next() {
//		fmt.Print(stream.Text())
//	}
//	if err := stream.Err(); err != nil { ... }
//	usage := stream.Response().GetUsage()
//
// A reader that pauses makes the server wait. One goroutine reads a stream. Any goroutine may close it.
type Stream[Part streamResponse, Answer any] struct {
	source  source[Part]
	cancel  context.CancelFunc
	answer  func(*merged) Answer
	merged  merged
	current Part
	// err ended the stream: io.EOF if the call succeeded.
	err error
}

// streamResponse is what the responses of both kinds of streams have.
type streamResponse interface {
	GetRequestId() string
	GetModel() string
	GetChoices() []*triptychv1.ChoiceDelta
	GetUsage() *triptychv1.Usage
	GetTimings() *triptychv1.Timings
	GetMedia() []*triptychv1.MediaReport
}

// source is what gRPC generates for a stream of responses.
type source[Part any] interface {
	Recv() (Part, error)
	grpc.ClientStream
}

// Recv waits for the next response. It returns io.EOF at the end of a call that succeeded, and an *Error at the end of one that
// failed or was closed. Responses that came before stay valid.
func (s *Stream[Part, Answer]) Recv() (Part, error) {
	var none Part
	if s.err != nil {
		return none, s.err
	}
	response, err := s.source.Recv()
	if err != nil {
		s.err, s.current = err, none
		s.cancel()
		return none, err
	}
	s.current = response
	s.merged.add(response)
	return response, nil
}

// Next waits for the next response, which Current and Text then return. It returns false at the end of the call; Err tells why.
func (s *Stream[Part, Answer]) Next() bool {
	_, err := s.Recv()
	return err == nil
}

// Current returns the response that was read last.
func (s *Stream[Part, Answer]) Current() Part { return s.current }

// Err returns why the call failed. It is nil before the end of the call, and if the call succeeded.
func (s *Stream[Part, Answer]) Err() error {
	if s.err == io.EOF {
		return nil
	}
	return s.err
}

// Text returns the text of choice 0 in the response that was read last, without reasoning and calls of tools. It may be empty.
func (s *Stream[Part, Answer]) Text() string {
	var text string
	for _, delta := range s.current.GetChoices() {
		if delta.GetIndex() == 0 {
			text += delta.GetText()
		}
	}
	return text
}

// Response returns what was read so far, merged into the answer that the call without a stream gives. It is a new message each
// time. A choice whose finish reason is unspecified has not ended.
func (s *Stream[Part, Answer]) Response() Answer { return s.answer(&s.merged) }

// TrailingMedia returns the reports on media in the trailing metadata. There are none before the end of the call, and if they are
// too long for metadata.
func (s *Stream[Part, Answer]) TrailingMedia() []*triptychv1.MediaReport {
	if s.err == nil {
		return nil
	}
	return TrailingMedia(s.source.Trailer())
}

// Close cancels the call, unless it has ended. The server then stops its work, and a reader gets an error that is
// context.Canceled. Close may be called again. It always returns nil.
func (s *Stream[Part, Answer]) Close() error {
	s.cancel()
	return nil
}

// TrailingMedia returns the reports on media in the trailing metadata of a call that answers once:
//
//	var trailer metadata.MD
//	answer, err := client.Chat(ctx, request, grpc.Trailer(&trailer))
//	reports := triptych.TrailingMedia(trailer)
func TrailingMedia(trailer metadata.MD) []*triptychv1.MediaReport {
	var reports []*triptychv1.MediaReport
	for _, value := range trailer.Get(mediaKey) {
		report := &triptychv1.MediaReport{}
		if proto.Unmarshal([]byte(value), report) == nil {
			reports = append(reports, report)
		}
	}
	return reports
}
