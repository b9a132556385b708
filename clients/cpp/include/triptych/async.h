#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "triptych/error.h"
#include "triptych/v1/generation.pb.h"

namespace triptych {

/// How a call in callback form ended.
struct StreamEnd {
  /// Null if the call succeeded. `error->raise()` throws it.
  std::shared_ptr<const Error> error;
  /// Reports on media in the trailing metadata.
  std::vector<v1::MediaReport> trailing_media;
};

/// Called for each response, one after the other. The next one is read when this has returned. The reference is valid until then.
template <class Response>
using OnResponse = std::function<void(const Response& response)>;
/// Called once, after the last response.
using OnDone = std::function<void(const StreamEnd& end)>;

namespace detail {

/// A call in callback form, as its handle sees it.
class AsyncCallState {
 public:
  virtual ~AsyncCallState() = default;
  virtual void cancel() noexcept = 0;
  virtual void pause() noexcept = 0;
  virtual void resume() noexcept = 0;
  virtual void wait() = 0;
  virtual void abandon() noexcept = 0;
};

}  // namespace detail

/// Handle of a call in callback form. Its functions may be called from any thread, also from callbacks unless it says otherwise.
///
/// Callbacks run on gRPC's threads, so they should be short, and must not throw: an exception ends the program.
///
/// The destructor cancels the call if it has not ended. Callbacks that have not started are not called any more, `on_done`
/// included. Outside of callbacks the destructor also waits until a running callback has returned and both callbacks are destroyed.
/// In a callback, of this call or of another one, it does not wait, because that could be for itself.
class AsyncCall {
 public:
  AsyncCall() = default;
  explicit AsyncCall(std::shared_ptr<detail::AsyncCallState> state) : state_(std::move(state)) {}
  AsyncCall(AsyncCall&& other) noexcept = default;
  AsyncCall& operator=(AsyncCall&& other) noexcept {
    if (this != &other) {
      reset();
      state_ = std::move(other.state_);
    }
    return *this;
  }
  ~AsyncCall() { reset(); }

  /// Ends the call on the server too. `on_done` gets RequestAbortedError with the code kCancelled.
  void cancel() noexcept {
    if (state_) state_->cancel();
  }

  /// Holds back the next read until `resume`, so that the server has to wait. A response that is being read is still delivered.
  /// While the call is paused `on_done` is not called either.
  void pause() noexcept {
    if (state_) state_->pause();
  }
  void resume() noexcept {
    if (state_) state_->resume();
  }

  /// Waits until `on_done` has returned. Throws std::logic_error in a callback, where it would wait for itself.
  void wait() {
    if (state_) state_->wait();
  }

 private:
  void reset() noexcept {
    if (const auto state = std::move(state_)) state->abandon();
  }

  std::shared_ptr<detail::AsyncCallState> state_;
};

}  // namespace triptych
