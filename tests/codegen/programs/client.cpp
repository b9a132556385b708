// Compiled, not linked: a client that nobody answers.
#include <grpcpp/grpcpp.h>

#include "triptych/v1/generation.grpc.pb.h"

std::unique_ptr<triptych::v1::GenerationService::Stub> client(const std::string& address) {
  return triptych::v1::GenerationService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
}
