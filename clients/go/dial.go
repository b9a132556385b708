package triptych

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// MaxMessageBytes is the size of the largest message, in either direction.
const MaxMessageBytes = 64 << 20

// windowBytes limits what is received ahead of a reader. By default gRPC lets it grow to many megabytes on a fast connection.
const windowBytes = 1 << 20

func dial(s settings) (*grpc.ClientConn, error) {
	if !isPrintable(s.apiKey) {
		return nil, errors.New("triptych: the API key has characters that are not printable ASCII")
	}
	target, options, err := targetOf(s.address)
	if err != nil {
		return nil, err
	}
	config, err := serviceConfig(s.retry, len(options) > 0)
	if err != nil {
		return nil, err
	}
	calls := caller{apiKey: s.apiKey, timeout: s.timeout}
	options = append(options,
		transportSecurity(s),
		grpc.WithDefaultServiceConfig(config),
		// Else a name server could replace the configuration.
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallSendMsgSize(MaxMessageBytes),
			grpc.MaxCallRecvMsgSize(MaxMessageBytes),
			// gRPC keeps a request for its retries only if it fits in here. By default pictures do not.
			grpc.MaxRetryRPCBufferSize(MaxMessageBytes),
		),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		// By default gRPC waits up to two minutes before it connects again.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithChainUnaryInterceptor(calls.unary),
		grpc.WithChainStreamInterceptor(calls.stream),
	)
	options = append(options, windowOptions(windowBytes)...)
	return newConn(target, append(options, s.dialOptions...)...)
}

func transportSecurity(s settings) grpc.DialOption {
	if s.tls == nil {
		return plaintext()
	}
	return grpc.WithTransportCredentials(credentials.NewTLS(s.tls))
}

// targetOf returns gRPC's target for an address, and for a list of addresses the option that resolves it.
func targetOf(address string) (string, []grpc.DialOption, error) {
	if address == "" {
		return "", nil, errors.New("triptych: the address is empty")
	}
	list := strings.Split(address, ",")
	if len(list) == 1 {
		if isHostPort(address) {
			return "dns:///" + address, nil, nil
		}
		return address, nil, nil
	}
	var state resolver.State
	for _, entry := range list {
		entry = strings.TrimSpace(entry)
		if !isHostPort(entry) {
			return "", nil, fmt.Errorf("triptych: %q in the list of addresses %q is not host:port", entry, address)
		}
		// The server's name is for TLS: by default gRPC would check all certificates for the name of the target.
		state.Addresses = append(state.Addresses, resolver.Address{Addr: entry, ServerName: entry})
	}
	builder := manual.NewBuilderWithScheme("triptych")
	builder.InitialState(state)
	return "triptych:///frontends", []grpc.DialOption{grpc.WithResolvers(builder)}, nil
}

func isHostPort(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && port != "" && !strings.Contains(address, "/")
}

// serviceConfig returns the configuration of all methods, in gRPC's JSON.
func serviceConfig(retry Retry, balance bool) (string, error) {
	retry = retry.withDefaults()
	if retry.MaxAttempts < 1 || retry.MaxAttempts > 5 {
		return "", fmt.Errorf("triptych: Retry.MaxAttempts is %d, not in [1, 5]", retry.MaxAttempts)
	}
	if retry.InitialBackoff < 0 || retry.MaxBackoff < 0 || retry.Multiplier < 0 {
		return "", fmt.Errorf("triptych: a field of Retry is negative: %+v", retry)
	}
	method := map[string]any{"name": []any{map[string]any{}}}
	if retry.MaxAttempts > 1 {
		method["retryPolicy"] = map[string]any{
			"maxAttempts":       retry.MaxAttempts,
			"initialBackoff":    fmt.Sprintf("%.9fs", retry.InitialBackoff.Seconds()),
			"maxBackoff":        fmt.Sprintf("%.9fs", retry.MaxBackoff.Seconds()),
			"backoffMultiplier": retry.Multiplier,
			// A server that stops ends calls with CANCELLED that it has not taken yet (grpc/grpc#41785).
			"retryableStatusCodes": []string{"UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"},
		}
	}
	config := map[string]any{"methodConfig": []any{method}}
	if balance {
		config["loadBalancingConfig"] = []any{map[string]any{"round_robin": map[string]any{}}}
	}
	text, err := json.Marshal(config)
	return string(text), err
}
