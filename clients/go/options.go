package triptych

import (
	"crypto/tls"
	"os"
	"time"

	"google.golang.org/grpc"
)

const (
	// AddressVariable is the environment variable with the default of WithAddress.
	AddressVariable = "TRIPTYCH_ADDRESS"
	// APIKeyVariable is the environment variable with the default of WithAPIKey.
	APIKeyVariable = "TRIPTYCH_API_KEY"

	defaultAddress = "127.0.0.1:50051"
)

// Option changes a setting of NewClient.
type Option func(*settings)

type settings struct {
	address     string
	apiKey      string
	timeout     time.Duration
	tls         *tls.Config
	retry       Retry
	dialOptions []grpc.DialOption
}

func defaultSettings() settings {
	address := os.Getenv(AddressVariable)
	if address == "" {
		address = defaultAddress
	}
	return settings{address: address, apiKey: os.Getenv(APIKeyVariable)}
}

// WithAddress sets where the frontend is: host:port, or another target of gRPC (unix:///run/triptych.sock). Several host:port,
// separated by commas, get the calls in turn; those that cannot be reached get none. The default is $TRIPTYCH_ADDRESS, or else
// 127.0.0.1:50051.
func WithAddress(address string) Option { return func(s *settings) { s.address = address } }

// WithAPIKey sets the key, which is sent as `authorization: Bearer KEY`. An empty key is not sent. The default is
// $TRIPTYCH_API_KEY.
func WithAPIKey(key string) Option { return func(s *settings) { s.apiKey = key } }

// WithTimeout sets the deadline of calls whose context has none. 0, the default, sets no deadline.
func WithTimeout(timeout time.Duration) Option { return func(s *settings) { s.timeout = timeout } }

// WithTLS connects with TLS. TLSFiles makes a configuration from PEM files; &tls.Config{} trusts the authorities of the system.
// The default, nil, is plaintext.
func WithTLS(config *tls.Config) Option { return func(s *settings) { s.tls = config } }

// WithRetry sets how calls are tried again.
func WithRetry(retry Retry) Option { return func(s *settings) { s.retry = retry } }

// WithDialOptions adds options of gRPC, such as interceptors and stats handlers. They are applied after those of this package.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(s *settings) { s.dialOptions = append(s.dialOptions, options...) }
}

// Retry says how calls are tried again that end with UNAVAILABLE or RESOURCE_EXHAUSTED before anything of the answer was
// received. gRPC does this within the deadline. A server can set the pause before the next attempt, or forbid it. Zero fields
// mean the defaults.
type Retry struct {
	// MaxAttempts counts the first attempt too. The default is 4, the most is 5, and 1 turns retries off.
	MaxAttempts int
	// InitialBackoff is the pause before the second attempt. The default is 100 ms. gRPC varies all pauses by 20 %.
	InitialBackoff time.Duration
	// MaxBackoff is the longest pause. The default is 2 s.
	MaxBackoff time.Duration
	// Multiplier says how many times longer each pause is than the one before. The default is 2.
	Multiplier float64
}

func (r Retry) withDefaults() Retry {
	if r.MaxAttempts == 0 {
		r.MaxAttempts = 4
	}
	if r.InitialBackoff == 0 {
		r.InitialBackoff = 100 * time.Millisecond
	}
	if r.MaxBackoff == 0 {
		r.MaxBackoff = 2 * time.Second
	}
	if r.Multiplier == 0 {
		r.Multiplier = 2
	}
	return r
}
