module github.com/triptych-ai/triptych/clients/go

go 1.25.0

require (
	github.com/triptych-ai/triptych/gen/go v0.0.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260526163538-3dc84a4a5aaa
	google.golang.org/grpc v1.83.1
	google.golang.org/protobuf v1.36.11
)

require (
	golang.org/x/net v0.55.0 // indirect
	golang.org/x/sys v0.45.0 // indirect
	golang.org/x/text v0.37.0 // indirect
)

// The stubs are generated, not committed: `make clients-go` in the root of the repository writes them.
replace github.com/triptych-ai/triptych/gen/go => ../../build/clients/go/src/github.com/triptych-ai/triptych/gen/go
