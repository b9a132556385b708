#pragma once

#include <grpcpp/channel.h>

#include <cstddef>
#include <memory>

#include "triptych/options.h"

namespace triptych::detail {

/// Largest message in either direction, in bytes.
inline constexpr std::size_t kMaxMessageBytes = std::size_t{64} << 20U;

/// A channel of gRPC. All that uses the channel holds this object, and lets go of it last.
struct SharedChannel {
  std::shared_ptr<grpc::Channel> grpc;
};

/// A channel with the retries, limits and keepalive of all clients of Triptych.
std::shared_ptr<const SharedChannel> open_channel(const ClientOptions& options);

}  // namespace triptych::detail
