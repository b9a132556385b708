//go:build !grpc133

package triptych

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// What differs between current releases of gRPC and 1.33, the one of Debian 12: compat_grpc133.go has the other half.

func newConn(target string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient(target, options...)
}

func plaintext() grpc.DialOption { return grpc.WithTransportCredentials(insecure.NewCredentials()) }

func windowOptions(bytes int32) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithStaticStreamWindowSize(bytes), grpc.WithStaticConnWindowSize(bytes)}
}
