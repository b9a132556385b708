#pragma once

#include <grpcpp/client_context.h>

#include <memory>
#include <mutex>
#include <vector>

#include "triptych/options.h"

namespace triptych::detail {

/// What the copies of a Cancellation share: the calls that it ends.
class CancellationState {
 public:
  static void watch(const Cancellation& cancellation, const std::shared_ptr<grpc::ClientContext>& context) {
    cancellation.state_->add(context);
  }
  void cancel();

 private:
  void add(const std::shared_ptr<grpc::ClientContext>& context);

  std::mutex mutex_;
  bool cancelled_ = false;
  std::vector<std::weak_ptr<grpc::ClientContext>> contexts_;
};

/// A context with deadline, metadata and cancellation of a call that is about to start.
std::shared_ptr<grpc::ClientContext> make_context(const ClientOptions& client, const CallOptions& call);

/// Reports on media in the trailing metadata of a call that has ended.
std::vector<v1::MediaReport> trailing_media(const grpc::ClientContext& context);

/// Throws std::invalid_argument if a request is too large to be sent.
void check_size(const google::protobuf::Message& request);

}  // namespace triptych::detail
