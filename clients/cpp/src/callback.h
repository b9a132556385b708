#pragma once

#include <grpcpp/support/client_callback.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "callback_scope.h"
#include "context.h"
#include "status.h"
#include "triptych/async.h"

namespace triptych::detail {

/// A server stream of gRPC that is delivered to callbacks. It owns itself from `start` to `OnDone`.
template <class Response>
class CallbackReader final : public AsyncCallState, public grpc::ClientReadReactor<Response> {
 public:
  CallbackReader(std::shared_ptr<CallContext> context, OnResponse<Response> on_response, OnDone on_done)
      : context_(std::move(context)), on_response_(std::move(on_response)), on_done_(std::move(on_done)) {}

  /// Starts a call that was prepared with this reactor.
  void start(std::shared_ptr<CallbackReader> self) {
    self_ = std::move(self);
    // Without a hold gRPC would end the call while it is paused, with responses unread.
    this->AddHold();
    this->StartRead(&response_);
    this->StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      this->RemoveHold();
      return;
    }
    run([this] { on_response_(response_); });
    {
      const std::lock_guard lock(mutex_);
      waiting_ = paused_ && !cancelled_;
      if (waiting_) return;
    }
    this->StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    const CallbackScope scope;  // until everything is destroyed: the last owner of the channel may be this object
    const auto self = std::move(self_);
    run([&] { on_done_({error_of(status, context_->request_id), trailing_media(*context_)}); });
    // What the callbacks have captured may be the call's own handle.
    on_response_ = nullptr;
    on_done_ = nullptr;
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  void cancel() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      cancelled_ = true;
    }
    context_->grpc.TryCancel();
    resume();  // The read of a cancelled call fails, which ends it.
  }

  void pause() noexcept override {
    const std::lock_guard lock(mutex_);
    paused_ = true;
  }

  void resume() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      paused_ = false;
      if (!waiting_) return;
      waiting_ = false;
    }
    this->StartRead(&response_);
  }

  void wait() override {
    if (in_callback()) throw std::logic_error("AsyncCall::wait in a callback would wait for itself");
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
  }

  void abandon() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      abandoned_ = true;
    }
    cancel();
    if (!in_callback()) wait();
  }

 private:
  /// Calls a callback unless the handle was destroyed. An exception ends the program: gRPC would swallow it, and the call would
  /// hang.
  template <class Callback>
  void run(const Callback& callback) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (abandoned_) return;
    }
    const CallbackScope scope;
    callback();
  }

  std::shared_ptr<CallContext> context_;
  OnResponse<Response> on_response_;
  triptych::OnDone on_done_;
  Response response_;
  std::shared_ptr<CallbackReader> self_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool paused_ = false;
  bool waiting_ = false;  // paused, with no read under way
  bool cancelled_ = false;
  bool abandoned_ = false;
  bool ended_ = false;
};

}  // namespace triptych::detail
