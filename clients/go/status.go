package triptych

import (
	"errors"
	"io"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// receivedError returns the *Error for an error of gRPC, with the request id that was sent. Other errors, such as those of a
// program's own interceptors, and the end of a stream, stay as they are.
func receivedError(err error, requestID string) error {
	if err == nil || err == io.EOF {
		return err
	}
	received := statusOf(err)
	if received == nil {
		return err
	}
	result := &Error{Code: received.Code(), Message: received.Message(), RequestID: requestID, cause: err}
	if result.Message == "" {
		result.Message = received.Code().String()
	}
	readDetails(received, result)
	result.Kind = kindOf(result.Reason, result.Code)
	if isTooLarge(result) {
		result.Kind = ErrInternal
	}
	return result
}

// statusOf returns the status within an error, or nil. status.FromError of gRPC would add the text of the errors around it, such
// as that of the last retry.
func statusOf(err error) *status.Status {
	var carrier interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &carrier) {
		return nil
	}
	return carrier.GRPCStatus()
}

func readDetails(received *status.Status, result *Error) {
	for _, detail := range received.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			about := detail.GetMetadata()
			result.HasDetails, result.Reason = true, detail.GetReason()
			result.Field, result.Limit, result.Value = about["field"], about["limit"], about["value"]
		case *errdetails.RetryInfo:
			delay := detail.GetRetryDelay().AsDuration()
			result.RetryAfter = &delay
		case *errdetails.RequestInfo:
			result.RequestID = detail.GetRequestId()
		}
	}
}

// isTooLarge tells whether a message or metadata was above gRPC's limits. The code is RESOURCE_EXHAUSTED then, but no queue is
// full.
func isTooLarge(err *Error) bool {
	if err.HasDetails || err.Code != codes.ResourceExhausted {
		return false
	}
	return strings.Contains(err.Message, "message larger than max") || strings.Contains(err.Message, "metadata size exceeds") ||
		strings.Contains(err.Message, "after decompression larger than max")
}
