// The callback form on a transport of this file, with standard locks only: gRPC's own locks are invisible to ThreadSanitizer, which
// then takes everything that crosses gRPC for a race. With -DTRIPTYCH_SANITIZE=thread: unit_tests --gtest_filter='CallbackReader.*'
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "callback.h"

namespace triptych {
namespace {

using Response = v1::ChatStreamResponse;
using Reader = detail::CallbackReader<Response>;

/// Delivers a number of responses on a thread of its own, as gRPC would.
class FakeTransport final : public grpc::ClientCallbackReader<Response> {
 public:
  explicit FakeTransport(int responses) : left_(responses) {}
  FakeTransport(const FakeTransport&) = delete;
  FakeTransport& operator=(const FakeTransport&) = delete;
  ~FakeTransport() { thread_.join(); }

  AsyncCall start(OnResponse<Response> on_response, OnDone on_done) {
    const auto reader =
        std::make_shared<Reader>(std::make_shared<detail::CallContext>(nullptr), std::move(on_response), std::move(on_done));
    reactor_ = reader.get();
    BindReactor(reactor_);
    reader->start(reader);
    return AsyncCall(reader);
  }

  void StartCall() override {
    thread_ = std::thread([this] { run(); });
  }
  void Read(Response* /*response*/) override {
    change([this] { ++reads_; });
  }
  void AddHold(int holds) override {
    change([&] { holds_ += holds; });
  }
  void RemoveHold() override {
    change([this] { --holds_; });
  }

 private:
  template <class Change>
  void change(const Change& apply) {
    const std::lock_guard lock(mutex_);
    apply();
    changed_.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return reads_ > 0 || holds_ == 0; });
      if (reads_ == 0) break;
      EXPECT_EQ(reads_, 1) << "two reads at once";
      --reads_;
      lock.unlock();
      reactor_->OnReadDone(left_-- > 0);
      lock.lock();
    }
    lock.unlock();
    reactor_->OnDone(grpc::Status::OK);
  }

  Reader* reactor_ = nullptr;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int reads_ = 0;
  int holds_ = 0;
  int left_;
};

constexpr int kRounds = 200;
constexpr int kResponses = 20;

TEST(CallbackReader, PausesAndResumesFromOtherThreads) {
  for (int round = 0; round < kRounds; ++round) {
    FakeTransport transport(kResponses);
    int responses = 0;
    int ended = 0;
    auto call = transport.start([&](const Response&) { ++responses; }, [&](const StreamEnd&) { ++ended; });
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] {
        for (int j = 0; j < 10; ++j) {
          call.pause();
          call.resume();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    call.resume();
    call.wait();
    EXPECT_EQ(responses, kResponses);
    EXPECT_EQ(ended, 1);
  }
}

TEST(CallbackReader, NoCallbackRunsAfterTheDestructor) {
  for (int round = 0; round < kRounds; ++round) {
    FakeTransport transport(kResponses);
    auto owned = std::make_unique<int>(0);  // what callbacks use goes right after the handle
    std::optional<AsyncCall> call;
    call = transport.start([&](const Response&) { ++*owned; }, [&](const StreamEnd&) { ++*owned; });
    if (round % 2 == 0) call->pause();
    std::thread other([&] { call->cancel(); });
    other.join();
    call.reset();
    owned.reset();
  }
}

TEST(CallbackReader, EndsAfterItsHandleWasDestroyedInACallback) {
  for (int round = 0; round < kRounds; ++round) {
    std::optional<AsyncCall> call;
    std::mutex mutex;
    int responses = 0;
    bool ended = false;
    {
      FakeTransport transport(kResponses);
      const std::unique_lock lock(mutex);
      call = transport.start(
          [&](const Response&) {
            const std::lock_guard guard(mutex);
            call.reset();
            ++responses;
          },
          [&](const StreamEnd&) { ended = true; });
    }  // waits for OnDone
    EXPECT_EQ(responses, 1);
    EXPECT_FALSE(ended);
  }
}

TEST(CallbackReader, CancelOfAPausedCallEndsIt) {
  for (int round = 0; round < kRounds; ++round) {
    FakeTransport transport(kResponses);
    std::atomic<int> responses = 0;
    AsyncCall call;
    std::mutex mutex;
    {
      const std::lock_guard lock(mutex);
      call = transport.start(
          [&](const Response&) {
            const std::lock_guard guard(mutex);
            call.pause();
            ++responses;
          },
          [](const StreamEnd&) {});
    }
    while (responses == 0) std::this_thread::yield();
    call.cancel();
    call.wait();
  }
}

}  // namespace
}  // namespace triptych
