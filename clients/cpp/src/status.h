#pragma once

#include <grpcpp/support/status.h>

#include <memory>

#include "triptych/error.h"

namespace triptych::detail {

/// The error that a status with google.rpc details stands for; null if the status is OK.
std::shared_ptr<const Error> error_of(const grpc::Status& status);

/// Throws the status's error. Returns if the status is OK.
void throw_if_error(const grpc::Status& status);

}  // namespace triptych::detail
