#include <gtest/gtest.h>

#include <atomic>
#include <type_traits>

#include "fake_server.h"

namespace triptych {
namespace {

using namespace std::chrono_literals;
using testing::FakeServer;
using testing::send_texts;

static_assert(!std::is_copy_constructible_v<ChatStream> && std::is_nothrow_move_constructible_v<std::unique_ptr<ChatStream>>);

TEST(Stream, IsARangeOfResponses) {
  FakeServer server;
  server.on_chat_stream = [](grpc::ServerContext& context, const v1::ChatStreamRequest& request, auto& writer) {
    v1::MediaReport report;
    report.set_num_tokens(9);
    context.AddTrailingMetadata("triptych-media-bin", report.SerializeAsString());
    return send_texts(writer, 3, request.chat().model());
  };
  v1::ChatRequest request;
  request.set_model("m");
  auto stream = server.client().chat_stream(request);  // the client may go before its streams
  ChatAccumulator accumulator;
  for (const auto& response : stream) {
    EXPECT_TRUE(stream.trailing_media().empty());
    accumulator.add(response);
  }
  EXPECT_EQ(accumulator.response().choices(0).text(), "mmm");
  ASSERT_EQ(stream.trailing_media().size(), 1U);
  EXPECT_EQ(stream.trailing_media()[0].num_tokens(), 9U);
  v1::ChatStreamResponse response;
  EXPECT_FALSE(stream.next(response));
}

TEST(Stream, ThrowsItsErrorAfterTheResponses) {
  FakeServer server;
  server.on_chat_stream = [](auto&, auto&, auto& writer) {
    send_texts(writer, 2);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
  };
  auto stream = server.client().chat_stream(v1::ChatRequest());
  ChatAccumulator accumulator;
  EXPECT_THROW(for (const auto& response : stream) accumulator.add(response), ServiceUnavailableError);
  EXPECT_EQ(accumulator.response().choices(0).text(), "xx");
  EXPECT_EQ(server.attempts.value(), 1) << "retried after the first response";
  v1::ChatStreamResponse response;
  EXPECT_THROW(stream.next(response), ServiceUnavailableError);
}

TEST(Stream, IsRetriedBeforeTheFirstResponse) {
  FakeServer server;
  server.on_chat_stream = [&](auto&, auto&, auto& writer) {
    if (server.attempts.value() < 4) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting");
    return send_texts(writer, 2);
  };
  const auto request = chat_request(message("user", image_from_bytes(std::string(3'000'000, 'p'))));
  int responses = 0;
  for (const auto& response : server.client().chat_stream(request)) responses += response.choices_size();
  EXPECT_EQ(responses, 2);
  EXPECT_EQ(server.attempts.value(), 4);
}

TEST(Stream, DestructorCancels) {
  FakeServer server;
  server.on_chat_stream = [](grpc::ServerContext& context, auto&, auto& writer) {
    send_texts(writer, 1);
    return testing::wait_for_cancellation(context);
  };
  for (const auto& response : server.client().chat_stream(v1::ChatRequest())) {
    EXPECT_EQ(response.choices(0).text(), "x");
    break;
  }
  EXPECT_TRUE(server.returned.reaches(1, 2s));
}

TEST(Stream, DestructorCancelsWithoutAReader) {
  FakeServer server;
  server.on_chat_stream = [](grpc::ServerContext& context, auto&, auto&) { return testing::wait_for_cancellation(context); };
  {
    auto stream = server.client().chat_stream(v1::ChatRequest());
    auto moved = std::move(stream);
    EXPECT_TRUE(server.attempts.reaches(1));
  }
  EXPECT_TRUE(server.returned.reaches(1, 2s));
}

TEST(Stream, CancelEndsAWaitingReader) {
  FakeServer server;
  server.on_chat_stream = [](grpc::ServerContext& context, auto&, auto&) { return testing::wait_for_cancellation(context); };
  auto stream = server.client().chat_stream(v1::ChatRequest());
  std::thread canceller([&] {
    EXPECT_TRUE(server.attempts.reaches(1));
    stream.cancel();
  });
  v1::ChatStreamResponse response;
  try {
    stream.next(response);
    ADD_FAILURE();
  } catch (const RequestAbortedError& error) {
    EXPECT_EQ(error.code(), Code::kCancelled);
  }
  canceller.join();
}

TEST(Stream, EndsAtItsDeadline) {
  FakeServer server;
  server.on_chat_stream = [](grpc::ServerContext& context, auto&, auto& writer) {
    send_texts(writer, 1);
    return testing::wait_for_cancellation(context);
  };
  CallOptions call;
  call.timeout = 200ms;
  auto stream = server.client().chat_stream(v1::ChatRequest(), call);
  v1::ChatStreamResponse response;
  EXPECT_TRUE(stream.next(response));
  EXPECT_THROW(stream.next(response), DeadlineExceededError);
}

TEST(Stream, APausedReaderMakesTheServerWait) {
  FakeServer server;
  std::atomic<int> sent = 0;
  server.on_chat_stream = [&](auto&, auto&, auto& writer) {
    const auto response = testing::text_response(std::string(256U << 10U, 'x'));
    while (sent < 64 && writer.Write(response)) ++sent;
    return grpc::Status::OK;
  };
  auto stream = server.client().chat_stream(v1::ChatRequest());
  v1::ChatStreamResponse response;
  EXPECT_TRUE(stream.next(response));
  std::this_thread::sleep_for(500ms);
  EXPECT_LT(sent, 32) << "the client buffers what nobody reads";
  int received = 1;
  while (stream.next(response)) ++received;
  EXPECT_EQ(received, 64);
}

TEST(Stream, IgnoresFieldsOfANewerServer) {
  FakeServer server;
  server.on_chat_stream = [](auto&, auto&, auto& writer) {
    auto response = testing::text_response("x");
    response.GetReflection()->MutableUnknownFields(&response)->AddLengthDelimited(19999 + 1000, "new");
    writer.Write(response);
    return grpc::Status::OK;
  };
  int responses = 0;
  for (const auto& response : server.client().chat_stream(v1::ChatRequest())) {
    EXPECT_EQ(response.choices(0).text(), "x");
    ++responses;
  }
  EXPECT_EQ(responses, 1);
}

}  // namespace
}  // namespace triptych
