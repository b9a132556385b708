// The client under test of the conformance cases: a line of JSON with a Call comes in, a line of JSON with its Outcome goes out.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	triptych "github.com/triptych-ai/triptych/clients/go"
	conformancev1 "github.com/triptych-ai/triptych/gen/go/triptych/conformance/v1"
	triptychv1 "github.com/triptych-ai/triptych/gen/go/triptych/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// cancelAfter is when a call is cancelled that is to be cancelled before its first response.
const cancelAfter = 300 * time.Millisecond

func main() {
	input := bufio.NewReader(os.Stdin)
	for {
		line, err := input.ReadBytes('\n')
		if err == io.EOF {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		outcome, err := answer(line)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", outcome)
	}
}

func answer(line []byte) ([]byte, error) {
	call := &conformancev1.Call{}
	if err := protojson.Unmarshal(line, call); err != nil {
		return nil, err
	}
	outcome := &conformancev1.Outcome{Name: call.GetName()}
	if err := makeCall(call, outcome); err != nil {
		return nil, fmt.Errorf("%s: %w", call.GetName(), err)
	}
	return protojson.Marshal(outcome)
}

// makeCall makes the call with a client of its own. It returns an error only if the program is at fault.
func makeCall(call *conformancev1.Call, outcome *conformancev1.Outcome) error {
	client, err := newClient(call)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := callContext(call)
	defer cancel()
	err = request(ctx, client, call, outcome)
	if err == nil || isOwnCancellation(call, err) {
		return nil
	}
	return setError(err, outcome)
}

func newClient(call *conformancev1.Call) (*triptych.Client, error) {
	options := []triptych.Option{triptych.WithAddress(call.GetAddress()), triptych.WithAPIKey(call.GetApiKey())}
	if files := call.GetTls(); files != nil {
		config, err := triptych.TLSFiles{
			RootCertificates: files.GetRootCertificates(),
			Certificate:      files.GetCertificate(),
			PrivateKey:       files.GetPrivateKey(),
			ServerName:       files.GetServerName(),
		}.Config()
		if err != nil {
			return nil, err
		}
		options = append(options, triptych.WithTLS(config))
	}
	return triptych.NewClient(options...)
}

func callContext(call *conformancev1.Call) (context.Context, context.CancelFunc) {
	ctx := context.Background()
	if call.GetRequestId() != "" {
		ctx = triptych.WithRequestID(ctx, call.GetRequestId())
	}
	ctx, cancel := context.WithCancel(ctx)
	if call.CancelAfterResponses != nil && call.GetCancelAfterResponses() == 0 {
		time.AfterFunc(cancelAfter, cancel)
	}
	if call.TimeoutS == nil {
		return ctx, cancel
	}
	ctx, release := context.WithTimeout(ctx, seconds(call.GetTimeoutS()))
	return ctx, func() { release(); cancel() }
}

func isOwnCancellation(call *conformancev1.Call, err error) bool {
	return call.CancelAfterResponses != nil && errors.Is(err, context.Canceled)
}

func setError(err error, outcome *conformancev1.Outcome) error {
	var failed *triptych.Error
	if !errors.As(err, &failed) {
		return err
	}
	outcome.ErrorClass, outcome.ErrorRequestId = string(failed.Kind), failed.RequestID
	outcome.Error = &triptychv1.RequestError{
		Code:    uint32(failed.Code),
		Message: failed.Message,
		Reason:  failed.Reason,
		Field:   failed.Field,
		Limit:   failed.Limit,
		Value:   failed.Value,
	}
	if failed.RetryAfter != nil {
		outcome.Error.RetryAfterS = proto.Float64(failed.RetryAfter.Seconds())
	}
	return nil
}

func seconds(value float64) time.Duration { return time.Duration(value * float64(time.Second)) }
