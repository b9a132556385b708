#include "channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "callback_scope.h"
#include "files.h"

namespace triptych::detail {
namespace {

// For all methods. gRPC itself retries only while nothing of the answer was received. A full queue is tried again only when its error
// says so: servers forbid it otherwise. A server that stops ends calls with CANCELLED that it has not taken yet (grpc/grpc#41785).
constexpr const char* kServiceConfig = R"({"methodConfig": [{"name": [{}], "retryPolicy": {
  "maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "2s", "backoffMultiplier": 2,
  "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"]}}]})";

std::shared_ptr<grpc::ChannelCredentials> credentials(const TlsOptions& tls) {
  if (tls.certificate.empty() != tls.private_key.empty()) {
    throw std::invalid_argument("TlsOptions needs both certificate and private_key, or neither of them");
  }
  grpc::SslCredentialsOptions options;
  if (!tls.root_certificates.empty()) options.pem_root_certs = read_file(tls.root_certificates);
  if (!tls.certificate.empty()) {
    options.pem_cert_chain = read_file(tls.certificate);
    options.pem_private_key = read_file(tls.private_key);
  }
  return grpc::SslCredentials(options);
}

grpc::ChannelArguments arguments(const ClientOptions& options) {
  constexpr int kMaxBytes = static_cast<int>(kMaxMessageBytes);
  grpc::ChannelArguments arguments;
  arguments.SetMaxSendMessageSize(kMaxBytes);
  arguments.SetMaxReceiveMessageSize(kMaxBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // What a stream receives ahead of its reader. By default gRPC lets this grow to many megabytes on a fast connection.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1 << 20);
  // By default gRPC waits up to two minutes before it connects again.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 1);
  arguments.SetServiceConfigJSON(kServiceConfig);
  // A request that is larger than this buffer is not retried. The default is 256 KiB, less than most pictures have.
  arguments.SetInt(GRPC_ARG_PER_RPC_RETRY_BUFFER_SIZE, kMaxBytes);
  if (options.tls && !options.tls->server_name.empty()) arguments.SetSslTargetNameOverride(options.tls->server_name);
  return arguments;
}

/// The last channel's destructor joins gRPC's threads for callbacks, so it must not run on one of them.
void close(const SharedChannel* channel) {
  if (in_callback()) {
    std::thread([channel] { delete channel; }).detach();
  } else {
    delete channel;
  }
}

}  // namespace

std::string environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody writes
  return value != nullptr && *value != '\0' ? value : otherwise;
}

std::shared_ptr<const SharedChannel> open_channel(const ClientOptions& options) {
  const auto channel_credentials = options.tls ? credentials(*options.tls) : grpc::InsecureChannelCredentials();
  return {new SharedChannel{grpc::CreateCustomChannel(options.address, channel_credentials, arguments(options))}, close};
}

}  // namespace triptych::detail
