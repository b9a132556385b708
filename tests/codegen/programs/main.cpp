#include <cstdio>

#include "triptych/v1/generation.pb.h"

int main() {
  triptych::v1::ChatRequest request;
  request.set_model("m");
  auto* message = request.add_messages();
  message->set_role("user");
  message->add_content()->set_text("Hi");
  request.mutable_options()->mutable_sampling()->set_temperature(0.5);
  request.mutable_options()->mutable_sampling()->set_max_tokens(8);
  auto* service = request.GetDescriptor()->file()->FindServiceByName("GenerationService");
  std::printf("%s ", service->full_name().c_str());
  for (unsigned char byte : request.SerializeAsString()) std::printf("%02x", byte);
  std::printf("\n");
}
