//go:build grpc133

package triptych

import "google.golang.org/grpc"

func newConn(target string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.Dial(target, options...)
}

func plaintext() grpc.DialOption { return grpc.WithInsecure() }

func windowOptions(bytes int32) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithInitialWindowSize(bytes), grpc.WithInitialConnWindowSize(bytes)}
}
