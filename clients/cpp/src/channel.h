#pragma once

#include <grpcpp/channel.h>

#include <cstddef>
#include <memory>

#include "triptych/options.h"

namespace triptych::detail {

/// Largest message in either direction, in bytes.
inline constexpr std::size_t kMaxMessageBytes = std::size_t{64} << 20U;

/// A channel with the retries, limits and keepalive of all clients of Triptych.
std::shared_ptr<grpc::Channel> open_channel(const ClientOptions& options);

}  // namespace triptych::detail
