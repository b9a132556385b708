#include "context.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

namespace triptych {

Cancellation::Cancellation() : state_(std::make_shared<detail::CancellationState>()) {}

void Cancellation::cancel() const { state_->cancel(); }

namespace detail {

void CancellationState::cancel() {
  std::vector<std::weak_ptr<CallContext>> contexts;
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    contexts.swap(contexts_);
  }
  for (const auto& weak : contexts) {
    if (const auto context = weak.lock()) context->grpc.TryCancel();
  }
}

void CancellationState::add(const std::shared_ptr<CallContext>& context) {
  const std::lock_guard lock(mutex_);
  const auto ended = [](const auto& weak) { return weak.expired(); };
  contexts_.erase(std::remove_if(contexts_.begin(), contexts_.end(), ended), contexts_.end());
  contexts_.push_back(context);
  if (cancelled_) context->grpc.TryCancel();
}

std::shared_ptr<CallContext> make_context(std::shared_ptr<const SharedChannel> channel, const ClientOptions& client,
                                          const CallOptions& call) {
  auto context = std::make_shared<CallContext>(std::move(channel), call.request_id);
  if (const auto timeout = call.timeout ? call.timeout : client.timeout) {
    context->grpc.set_deadline(std::chrono::system_clock::now() + *timeout);
  }
  if (!client.api_key.empty()) context->grpc.AddMetadata("authorization", "Bearer " + client.api_key);
  if (!call.request_id.empty()) context->grpc.AddMetadata("x-request-id", call.request_id);
  if (call.cancellation) CancellationState::watch(*call.cancellation, context);
  return context;
}

std::vector<v1::MediaReport> trailing_media(const CallContext& context) {
  std::vector<v1::MediaReport> reports;
  const auto [begin, end] = context.grpc.GetServerTrailingMetadata().equal_range("triptych-media-bin");
  for (auto entry = begin; entry != end; ++entry) {
    const grpc::string_ref value = entry->second;
    v1::MediaReport report;
    if (report.ParseFromArray(value.data(), static_cast<int>(value.size()))) reports.push_back(std::move(report));
  }
  return reports;
}

void check_size(const google::protobuf::Message& request) {
  const std::size_t size = request.ByteSizeLong();
  if (size <= kMaxMessageBytes) return;
  throw std::invalid_argument("the request has " + std::to_string(size) + " bytes; a message has at most " +
                              std::to_string(kMaxMessageBytes) + ". Send larger media by their url");
}

}  // namespace detail
}  // namespace triptych
