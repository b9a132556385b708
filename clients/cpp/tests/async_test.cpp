#include <gtest/gtest.h>

#include <atomic>
#include <optional>

#include "fake_server.h"

namespace triptych {
namespace {

using namespace std::chrono_literals;
using testing::Counter;
using testing::FakeServer;
using testing::send_texts;

/// A server that sends one text and then waits for the client to cancel.
void stall(FakeServer& server) {
  server.on_chat_stream = [](grpc::ServerContext& context, auto&, auto& writer) {
    send_texts(writer, 1);
    return testing::wait_for_cancellation(context);
  };
}

TEST(Async, DeliversResponsesThenTheEnd) {
  FakeServer server;
  server.on_chat_stream = [](grpc::ServerContext& context, auto&, auto& writer) {
    context.AddTrailingMetadata("triptych-media-bin", v1::MediaReport().SerializeAsString());
    return send_texts(writer, 100);
  };
  ChatAccumulator accumulator;
  std::optional<StreamEnd> end;
  auto call = server.client().chat_async(
      {}, [&](const auto& response) { accumulator.add(response); }, [&](const StreamEnd& stream_end) { end = stream_end; });
  call.wait();
  EXPECT_EQ(accumulator.response().choices(0).text(), std::string(100, 'x'));
  ASSERT_TRUE(end);
  EXPECT_EQ(end->error, nullptr);
  EXPECT_EQ(end->trailing_media.size(), 1U);
}

TEST(Async, GivesTheErrorAfterTheResponses) {
  FakeServer server;
  server.on_chat_stream = [](auto&, auto&, auto& writer) {
    send_texts(writer, 2);
    return testing::status_with_details(grpc::StatusCode::INTERNAL, "broken", "INTERNAL");
  };
  int responses = 0;
  std::shared_ptr<const Error> error;
  auto call = server.client().chat_async(
      {}, [&](const auto&) { ++responses; }, [&](const StreamEnd& end) { error = end.error; });
  call.wait();
  EXPECT_EQ(responses, 2);
  ASSERT_NE(error, nullptr);
  EXPECT_THROW(error->raise(), InternalError);
}

TEST(Async, IsRetriedBeforeTheFirstResponse) {
  FakeServer server;
  server.on_chat_stream = [&](auto&, auto&, auto& writer) {
    if (server.attempts.value() < 2) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting");
    return send_texts(writer, 1);
  };
  std::shared_ptr<const Error> error;
  server.client()
      .chat_async(
          {}, [](const auto&) {}, [&](const StreamEnd& end) { error = end.error; })
      .wait();
  EXPECT_EQ(error, nullptr);
  EXPECT_EQ(server.attempts.value(), 2);
}

TEST(Async, ManyCallsAtOnce) {
  constexpr int kCalls = 64;
  FakeServer server;
  server.on_chat_stream = [](auto&, auto&, auto& writer) { return send_texts(writer, 50); };
  const auto client = server.client();
  std::atomic<int> responses = 0;
  std::atomic<int> ended = 0;
  std::vector<AsyncCall> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(client.chat_async(
        {}, [&](const auto&) { ++responses; }, [&](const StreamEnd& end) { ended += end.error == nullptr; }));
  }
  for (auto& call : calls) call.wait();
  EXPECT_EQ(ended, kCalls);
  EXPECT_EQ(responses, kCalls * 50);
}

TEST(Async, CancelEndsTheCall) {
  FakeServer server;
  stall(server);
  Counter responses;
  std::shared_ptr<const Error> error;
  auto call = server.client().chat_async(
      {}, [&](const auto&) { responses.add(); }, [&](const StreamEnd& end) { error = end.error; });
  EXPECT_TRUE(responses.reaches(1));
  call.cancel();
  call.wait();
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->code(), Code::kCancelled);
  EXPECT_TRUE(server.returned.reaches(1, 2s));
}

TEST(Async, DestructorCancelsWaitsAndReleases) {
  FakeServer server;
  stall(server);
  Counter responses;
  std::atomic<bool> done = false;
  auto captured = std::make_shared<int>(0);
  {
    auto call = server.client().chat_async(
        {}, [&, captured](const auto&) { responses.add(); }, [&](const StreamEnd&) { done = true; });
    EXPECT_TRUE(responses.reaches(1));
  }
  EXPECT_EQ(captured.use_count(), 1) << "a callback outlives the handle";
  EXPECT_FALSE(done);
  EXPECT_TRUE(server.returned.reaches(1, 2s));
}

TEST(Async, HandleMayBeDestroyedInOnResponse) {
  FakeServer server;
  stall(server);
  Counter destroyed;
  std::mutex mutex;
  std::optional<AsyncCall> call;
  std::unique_lock lock(mutex);
  call = server.client().chat_async(
      {},
      [&](const auto&) {
        const std::lock_guard guard(mutex);
        call.reset();
        destroyed.add();
      },
      [&](const StreamEnd&) { ADD_FAILURE() << "called after its handle was destroyed"; });
  lock.unlock();
  EXPECT_TRUE(destroyed.reaches(1));
  EXPECT_TRUE(server.returned.reaches(1, 2s));
}

TEST(Async, CallbacksMayOwnTheHandle) {
  FakeServer server;
  server.on_chat_stream = [](auto&, auto&, auto& writer) { return send_texts(writer, 2); };
  Counter released;
  {
    const auto call = std::shared_ptr<AsyncCall>(new AsyncCall, [&](AsyncCall* handle) {
      delete handle;
      released.add();
    });
    std::mutex mutex;
    const std::lock_guard lock(mutex);
    *call = server.client().chat_async(
        {}, [](const auto&) {}, [call](const StreamEnd&) {});
  }
  EXPECT_TRUE(released.reaches(1));
}

TEST(Async, HandlesOfManyCallsMayBeDestroyedInCallbacksOfOthers) {
  constexpr std::size_t kCalls = 32;
  FakeServer server;
  stall(server);
  const auto client = server.client();
  std::mutex mutex;
  std::vector<AsyncCall> calls(kCalls);
  Counter ended;
  for (std::size_t i = 0; i < kCalls; ++i) {
    auto call = client.chat_async(
        {},
        [&, i](const auto&) {
          AsyncCall other;
          const std::lock_guard lock(mutex);
          other = std::move(calls[(i + 1) % kCalls]);
          ended.add();
        },
        [](const StreamEnd&) {});
    const std::lock_guard lock(mutex);
    calls[i] = std::move(call);
  }
  ended.reaches(kCalls, 2s);  // fewer if a handle went before its call had a response
  calls.clear();
  EXPECT_TRUE(server.returned.reaches(server.attempts.value(), 5s));
}

TEST(Async, WaitInACallbackIsRefused) {
  FakeServer server;
  server.on_chat_stream = [](auto&, auto&, auto& writer) { return send_texts(writer, 1); };
  AsyncCall call;
  std::mutex mutex;
  bool refused = false;
  std::unique_lock lock(mutex);
  call = server.client().chat_async(
      {},
      [&](const auto&) {
        const std::lock_guard guard(mutex);
        try {
          call.wait();
        } catch (const std::logic_error&) {
          refused = true;
        }
      },
      [](const StreamEnd&) {});
  lock.unlock();
  call.wait();
  EXPECT_TRUE(refused);
}

TEST(Async, APausedCallMakesTheServerWait) {
  FakeServer server;
  server.on_chat = [](auto&, auto&, auto&) { return grpc::Status::OK; };
  std::atomic<int> sent = 0;
  server.on_chat_stream = [&](auto&, auto&, auto& writer) {
    const auto response = testing::text_response(std::string(256U << 10U, 'x'));
    while (sent < 64 && writer.Write(response)) ++sent;
    return grpc::Status::OK;
  };
  Counter responses;
  Counter ended;
  AsyncCall call;
  std::mutex mutex;
  std::unique_lock lock(mutex);
  const auto client = server.client();
  call = client.chat_async(
      {},
      [&](const auto&) {
        const std::lock_guard guard(mutex);
        if (responses.value() == 0) call.pause();
        responses.add();
      },
      [&](const StreamEnd&) { ended.add(); });
  lock.unlock();
  EXPECT_FALSE(ended.reaches(1, 500ms));
  EXPECT_EQ(responses.value(), 1);
  EXPECT_LT(sent, 32);
  client.chat({});  // on the same connection, which the paused call must not block
  call.resume();
  call.wait();
  EXPECT_EQ(responses.value(), 64);
}

TEST(Async, APausedCallCanBeCancelled) {
  FakeServer server;
  server.on_chat_stream = [](auto&, auto&, auto& writer) { return send_texts(writer, 1000); };
  Counter responses;
  auto call = server.client().chat_async(
      {}, [&](const auto&) { responses.add(); }, [](const StreamEnd&) {});
  call.pause();
  call.cancel();
  call.wait();
  EXPECT_LE(responses.value(), 1000);
}

}  // namespace
}  // namespace triptych
