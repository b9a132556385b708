#pragma once

namespace triptych::detail {

/// Whether this thread runs a callback of any call. There a call's end must not be waited for: gRPC has few threads for callbacks.
bool in_callback() noexcept;

/// Marks its lifetime as a callback.
class CallbackScope {
 public:
  CallbackScope() noexcept;
  ~CallbackScope();
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;
};

}  // namespace triptych::detail
