#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "fake_server.h"

namespace triptych {
namespace {

using namespace std::chrono_literals;
using testing::FakeServer;

const grpc::Status kUnavailable(grpc::StatusCode::UNAVAILABLE, "restarting");

v1::ChatRequest picture(std::size_t bytes) {
  return chat_request(message("user", image_from_bytes(std::string(bytes, 'p')), "What is it?"));
}

TEST(Chat, SendsPartsMetadataAndDeadline) {
  FakeServer server;
  std::multimap<std::string, std::string> metadata;
  std::chrono::system_clock::duration left{};
  server.on_chat = [&](grpc::ServerContext& context, const v1::ChatRequest& request, v1::ChatResponse& response) {
    for (const auto& [key, value] : context.client_metadata()) {
      metadata.emplace(std::string(key.data(), key.size()), std::string(value.data(), value.size()));
    }
    left = context.deadline() - std::chrono::system_clock::now();
    v1::MediaReport report;
    report.set_num_tokens(static_cast<std::uint32_t>(request.messages(0).content(0).media().data().size()));
    context.AddTrailingMetadata("triptych-media-bin", report.SerializeAsString());
    response.add_choices()->set_text(request.messages(0).content(1).text());
    return grpc::Status::OK;
  };
  auto options = server.options();
  options.api_key = "secret";
  options.timeout = 60s;
  std::vector<v1::MediaReport> media;
  CallOptions call;
  call.request_id = "mine";
  call.trailing_media = &media;
  const auto response = Client(options).chat(picture(5), call);
  EXPECT_EQ(response.choices(0).text(), "What is it?");
  EXPECT_EQ(metadata.find("authorization")->second, "Bearer secret");
  EXPECT_EQ(metadata.find("x-request-id")->second, "mine");
  EXPECT_GT(left, 50s);
  EXPECT_LT(left, 62s);  // gRPC rounds it up
  ASSERT_EQ(media.size(), 1U);
  EXPECT_EQ(media[0].num_tokens(), 5U);
}

TEST(Chat, IsRetriedWhileUnavailable) {
  FakeServer server;
  server.on_chat = [&](auto&, const v1::ChatRequest& request, v1::ChatResponse& response) {
    if (server.attempts.value() < 3) return kUnavailable;
    response.add_choices()->set_text(std::to_string(request.messages(0).content(0).media().data().size()));
    return grpc::Status::OK;
  };
  EXPECT_EQ(server.client().chat(picture(3'000'000)).choices(0).text(), "3000000");
  EXPECT_EQ(server.attempts.value(), 3);
}

TEST(Chat, IsTriedFourTimesAtMost) {
  FakeServer server;
  server.on_chat = [&](auto&, auto&, auto&) { return kUnavailable; };
  EXPECT_THROW(server.client().chat({}), ServiceUnavailableError);
  EXPECT_EQ(server.attempts.value(), 4);
}

TEST(Chat, IsNotRetriedAfterOtherErrors) {
  FakeServer server;
  server.on_chat = [&](auto&, auto&, auto&) { return grpc::Status(grpc::StatusCode::INTERNAL, "broken"); };
  EXPECT_THROW(server.client().chat({}), InternalError);
  EXPECT_EQ(server.attempts.value(), 1);
}

TEST(Chat, IsRetriedAfterAFullQueueWhenTheServerSays) {
  for (const auto& [pushback, attempts] : {std::pair{"50", 4}, std::pair{"-1", 1}}) {
    FakeServer server;
    server.on_chat = [&, text = std::string(pushback)](grpc::ServerContext& context, auto&, auto&) {
      context.AddTrailingMetadata("grpc-retry-pushback-ms", text);
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full");
    };
    EXPECT_THROW(server.client().chat({}), QueueFullError);
    EXPECT_EQ(server.attempts.value(), attempts);
  }
}

TEST(Chat, EndsAtItsDeadline) {
  FakeServer server;
  server.on_chat = [](grpc::ServerContext& context, auto&, auto&) { return testing::wait_for_cancellation(context); };
  CallOptions call;
  call.timeout = 100ms;
  EXPECT_THROW(server.client().chat({}, call), DeadlineExceededError);
}

TEST(Chat, IsCancelledFromAnotherThread) {
  FakeServer server;
  server.on_chat = [](grpc::ServerContext& context, auto&, auto&) { return testing::wait_for_cancellation(context); };
  CallOptions call;
  call.cancellation.emplace();
  std::thread canceller([&] {
    EXPECT_TRUE(server.attempts.reaches(1));
    call.cancellation->cancel();
  });
  const auto client = server.client();
  EXPECT_THROW(client.chat({}, call), RequestAbortedError);
  canceller.join();
  // Calls that start later are cancelled too.
  EXPECT_THROW(client.chat({}, call), RequestAbortedError);
  EXPECT_EQ(server.attempts.value(), 1);
}

TEST(Chat, RefusesARequestThatIsTooLarge) {
  FakeServer server;
  EXPECT_THROW(server.client().chat(picture((64U << 20U) + 1)), std::invalid_argument);
}

TEST(Rerank, SortsDocumentsByScore) {
  FakeServer server;
  server.on_score = [](auto&, v1::ScoreResponse& response) {
    for (const float score : {0.25F, 0.75F, 0.25F, 0.5F}) response.add_scores(score);
    return grpc::Status::OK;
  };
  std::vector<std::size_t> order;
  for (const auto& document : server.client().rerank({})) order.push_back(document.index);
  EXPECT_EQ(order, (std::vector<std::size_t>{1, 3, 0, 2}));
}

TEST(Media, IsReadFromFiles) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "triptych_media_test";
  std::ofstream(path, std::ios::binary) << std::string("\0\xFFjpeg", 6);
  const auto part = video_from_file(path);
  EXPECT_EQ(part.media().modality(), v1::MODALITY_VIDEO);
  EXPECT_EQ(part.media().data(), std::string("\0\xFFjpeg", 6));
  std::filesystem::remove(path);
  EXPECT_THROW(image_from_file(path), std::runtime_error);
  EXPECT_THROW(audio_from_file(::testing::TempDir()), std::runtime_error);
}

}  // namespace
}  // namespace triptych
