#pragma once

#include <grpcpp/client_context.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "channel.h"
#include "triptych/options.h"

namespace triptych::detail {

/// gRPC's context of a call, together with its channel, which it uses until its end.
struct CallContext {
  explicit CallContext(std::shared_ptr<const SharedChannel> shared_channel, std::string id = {})
      : channel(std::move(shared_channel)), request_id(std::move(id)) {}

  std::shared_ptr<const SharedChannel> channel;
  std::string request_id;
  grpc::ClientContext grpc;
};

/// What the copies of a Cancellation share: the calls that it ends.
class CancellationState {
 public:
  static void watch(const Cancellation& cancellation, const std::shared_ptr<CallContext>& context) {
    cancellation.state_->add(context);
  }
  void cancel();

 private:
  void add(const std::shared_ptr<CallContext>& context);

  std::mutex mutex_;
  bool cancelled_ = false;
  std::vector<std::weak_ptr<CallContext>> contexts_;
};

/// A context with deadline, metadata and cancellation of a call that is about to start.
std::shared_ptr<CallContext> make_context(std::shared_ptr<const SharedChannel> channel, const ClientOptions& client,
                                          const CallOptions& call);

/// Reports on media in the trailing metadata of a call that has ended.
std::vector<v1::MediaReport> trailing_media(const CallContext& context);

/// Throws std::invalid_argument if a request is too large to be sent.
void check_size(const google::protobuf::Message& request);

}  // namespace triptych::detail
