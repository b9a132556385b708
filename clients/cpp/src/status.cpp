#include "status.h"

#include <string>
#include <utility>

#include "status_details.pb.h"

namespace triptych::detail {
namespace {

using client::details::ErrorInfo;
using client::details::RequestInfo;
using client::details::RetryInfo;

/// Reads a detail if it is of the type `google.rpc.NAME`.
template <class Message>
bool unpack(const google::protobuf::Any& detail, const char* name, Message& message) {
  const std::string& url = detail.type_url();
  return url.substr(url.rfind('/') + 1) == name && message.ParseFromString(detail.value());
}

std::string metadata(const ErrorInfo& info, const char* key) {
  const auto found = info.metadata().find(key);
  return found == info.metadata().end() ? std::string() : found->second;
}

void read_details(const std::string& serialized, ErrorFields& fields) {
  client::details::Status status;
  if (serialized.empty() || !status.ParseFromString(serialized)) return;
  fields.has_details = true;
  for (const google::protobuf::Any& detail : status.details()) {
    ErrorInfo info;
    RetryInfo retry;
    RequestInfo request;
    if (unpack(detail, "google.rpc.ErrorInfo", info)) {
      fields.reason = info.reason();
      fields.field = metadata(info, "field");
      fields.limit = metadata(info, "limit");
      fields.value = metadata(info, "value");
    } else if (unpack(detail, "google.rpc.RetryInfo", retry)) {
      const auto& delay = retry.retry_delay();
      fields.retry_after_s = static_cast<double>(delay.seconds()) + delay.nanos() * 1e-9;
    } else if (unpack(detail, "google.rpc.RequestInfo", request)) {
      fields.request_id = request.request_id();
    }
  }
}

/// Whether a message or metadata was above gRPC's limits. The code is RESOURCE_EXHAUSTED then, but no queue is full.
bool is_too_large(const ErrorFields& fields) {
  if (fields.has_details || fields.code != Code::kResourceExhausted) return false;
  const auto has = [&](const char* words) { return fields.message.find(words) != std::string::npos; };
  return has("message larger than max") || has("metadata size exceeds");
}

}  // namespace

std::shared_ptr<const Error> error_of(const grpc::Status& status, const std::string& request_id) {
  if (status.ok()) return nullptr;
  ErrorFields fields;
  fields.code = static_cast<Code>(status.error_code());
  fields.message = status.error_message();
  fields.request_id = request_id;
  if (fields.message.empty()) fields.message = "gRPC status " + std::to_string(status.error_code());
  read_details(status.error_details(), fields);
  if (is_too_large(fields)) return std::make_shared<const InternalError>(std::move(fields));
  return make_error(std::move(fields));
}

}  // namespace triptych::detail
