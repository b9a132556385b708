package triptych

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Kind is a class of errors. Its text is the name of the class in docs/contracts.md. Compare with errors.Is:
//
//	if errors.Is(err, triptych.ErrQueueFull) { ... }
type Kind string

// The kinds of errors. ErrContextLength and ErrNeverFits are ErrInvalidRequest too.
const (
	// ErrInvalidRequest: the request is at fault. A retry will not help.
	ErrInvalidRequest Kind = "InvalidRequestError"
	// ErrContextLength: the prompt, or prompt and output together, are longer than the model's context.
	ErrContextLength Kind = "ContextLengthError"
	// ErrNeverFits: the request needs more KV cache than the engine has in total.
	ErrNeverFits Kind = "NeverFitsError"
	// ErrModelNotFound: no model of that name is served here.
	ErrModelNotFound Kind = "ModelNotFoundError"
	// ErrMediaNotFound: the cache has no embedding for this key, and the request came without the file. Send the file.
	ErrMediaNotFound Kind = "MediaNotFoundError"
	// ErrDuplicateRequest: a live request already has this id.
	ErrDuplicateRequest Kind = "DuplicateRequestError"
	// ErrQueueFull: the queue is at its limit. Try again after Error.RetryAfter.
	ErrQueueFull Kind = "QueueFullError"
	// ErrServiceUnavailable: a service that the request needs is unavailable, draining or asleep.
	ErrServiceUnavailable Kind = "ServiceUnavailableError"
	// ErrEmbeddingUnavailable: a required embedding is no longer held, or its encoder is unavailable.
	ErrEmbeddingUnavailable Kind = "EmbeddingUnavailableError"
	// ErrRequestAborted: the request was aborted, or the client cancelled the call. After a cancellation the code is
	// codes.Canceled.
	ErrRequestAborted Kind = "RequestAbortedError"
	// ErrDeadlineExceeded: the call took longer than its deadline. The work was aborted.
	ErrDeadlineExceeded Kind = "DeadlineExceededError"
	// ErrUnauthenticated: the call has no key, or one that is not valid.
	ErrUnauthenticated Kind = "UnauthenticatedError"
	// ErrPermissionDenied: the caller is known, and may not do this.
	ErrPermissionDenied Kind = "PermissionDeniedError"
	// ErrUnimplemented: the request is valid, but this service or model does not support it.
	ErrUnimplemented Kind = "UnimplementedError"
	// ErrInternal: an unexpected error. The service's log has more.
	ErrInternal Kind = "InternalError"
	// ErrStartup: a service cannot start. Never the error of a call.
	ErrStartup Kind = "StartupError"
	// ErrUnsupportedModel: a service cannot run its model correctly. Never the error of a call.
	ErrUnsupportedModel Kind = "UnsupportedModelError"
)

// Error returns the name of the class.
func (k Kind) Error() string { return string(k) }

// Error is the error of a failed call.
type Error struct {
	Kind Kind
	Code codes.Code
	// Message is one sentence for people. It names the field, the limit and the value.
	Message string
	// Reason is a constant for programs, e.g. CONTEXT_LENGTH_EXCEEDED. It is empty if the error comes from the transport.
	Reason string
	// Field is the path of the offending field, Limit the limit that was exceeded, and Value what was given. Empty if there is
	// none.
	Field, Limit, Value string
	// RetryAfter tells when to try again. It is nil if a retry will not help.
	RetryAfter *time.Duration
	// RequestID names the call in the services' logs.
	RequestID string
	// HasDetails tells whether a service sent this error. If not, it comes from the transport or from this package.
	HasDetails bool

	cause error
}

// Error returns the class, the message, and the request id.
func (e *Error) Error() string {
	text := "triptych: " + string(e.Kind) + ": " + e.Message
	if e.RequestID != "" {
		text += " (request " + e.RequestID + ")"
	}
	return text
}

// Is tells whether target is the kind of this error, or one that includes it. The error of a call that was cancelled is
// context.Canceled too, and that of a call that met its deadline is context.DeadlineExceeded.
func (e *Error) Is(target error) bool {
	switch target {
	case e.Kind:
		return true
	case ErrInvalidRequest:
		return e.Kind == ErrContextLength || e.Kind == ErrNeverFits
	case ErrStartup:
		return e.Kind == ErrUnsupportedModel
	case context.Canceled:
		return e.Code == codes.Canceled
	case context.DeadlineExceeded:
		return e.Code == codes.DeadlineExceeded
	}
	return false
}

// Unwrap returns gRPC's error.
func (e *Error) Unwrap() error { return e.cause }

// GRPCStatus makes status.FromError and status.Code of gRPC work with this error.
func (e *Error) GRPCStatus() *status.Status {
	if received := statusOf(e.cause); received != nil {
		return received
	}
	return status.New(e.Code, e.Message)
}

// kindOf returns the kind of an error that was received: by its reason, or else by its code.
func kindOf(reason string, code codes.Code) Kind {
	if kind, known := kindsByReason[reason]; known {
		return kind
	}
	if kind, known := kindsByCode[code]; known {
		return kind
	}
	return ErrInternal
}

var kindsByReason = map[string]Kind{
	"INVALID_REQUEST":            ErrInvalidRequest,
	"CONTEXT_LENGTH_EXCEEDED":    ErrContextLength,
	"KV_CACHE_CAPACITY_EXCEEDED": ErrNeverFits,
	"MODEL_NOT_FOUND":            ErrModelNotFound,
	"MEDIA_NOT_FOUND":            ErrMediaNotFound,
	"DUPLICATE_REQUEST":          ErrDuplicateRequest,
	"QUEUE_FULL":                 ErrQueueFull,
	"SERVICE_UNAVAILABLE":        ErrServiceUnavailable,
	"EMBEDDING_UNAVAILABLE":      ErrEmbeddingUnavailable,
	"ABORTED":                    ErrRequestAborted,
	"DEADLINE_EXCEEDED":          ErrDeadlineExceeded,
	"UNAUTHENTICATED":            ErrUnauthenticated,
	"PERMISSION_DENIED":          ErrPermissionDenied,
	"UNIMPLEMENTED":              ErrUnimplemented,
	"INTERNAL":                   ErrInternal,
	"STARTUP":                    ErrStartup,
	"UNSUPPORTED_MODEL":          ErrUnsupportedModel,
}

var kindsByCode = map[codes.Code]Kind{
	codes.Canceled:           ErrRequestAborted,
	codes.InvalidArgument:    ErrInvalidRequest,
	codes.DeadlineExceeded:   ErrDeadlineExceeded,
	codes.NotFound:           ErrModelNotFound,
	codes.AlreadyExists:      ErrDuplicateRequest,
	codes.PermissionDenied:   ErrPermissionDenied,
	codes.ResourceExhausted:  ErrQueueFull,
	codes.FailedPrecondition: ErrServiceUnavailable,
	codes.Aborted:            ErrRequestAborted,
	codes.Unimplemented:      ErrUnimplemented,
	codes.Unavailable:        ErrServiceUnavailable,
	codes.Unauthenticated:    ErrUnauthenticated,
}
