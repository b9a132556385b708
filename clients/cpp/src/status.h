#pragma once

#include <grpcpp/support/status.h>

#include <memory>
#include <string>

#include "triptych/error.h"

namespace triptych::detail {

/// The error that a status with google.rpc details stands for; null if the status is OK. `request_id` is the id that the client
/// sent.
std::shared_ptr<const Error> error_of(const grpc::Status& status, const std::string& request_id);

}  // namespace triptych::detail
