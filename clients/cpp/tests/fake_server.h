#pragma once

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "status_details.pb.h"
#include "triptych/client.h"
#include "triptych/v1/generation.grpc.pb.h"

namespace triptych::testing {

using namespace std::chrono_literals;

/// A count that threads wait for.
class Counter {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    ++value_;
    changed_.notify_all();
  }
  int value() const {
    const std::lock_guard lock(mutex_);
    return value_;
  }
  /// Whether the count reaches the value in time.
  bool reaches(int value, std::chrono::milliseconds timeout = 10s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] { return value_ >= value; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int value_ = 0;
};

/// A GenerationService behind real gRPC, whose answers a test gives.
class FakeServer : public v1::GenerationService::Service {
 public:
  using StreamWriter = grpc::ServerWriter<v1::ChatStreamResponse>;

  explicit FakeServer(const std::shared_ptr<grpc::ServerCredentials>& credentials = grpc::InsecureServerCredentials()) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port_);
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeServer() override { server_->Shutdown(std::chrono::system_clock::now() + 5s); }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  ClientOptions options() const {
    ClientOptions options;
    options.address = address();
    return options;
  }
  Client client() const { return Client(options()); }

  std::function<grpc::Status(grpc::ServerContext&, const v1::ChatRequest&, v1::ChatResponse&)> on_chat;
  std::function<grpc::Status(grpc::ServerContext&, const v1::ChatStreamRequest&, StreamWriter&)> on_chat_stream;
  std::function<grpc::Status(const v1::ScoreRequest&, v1::ScoreResponse&)> on_score;
  /// Attempts of Chat and ChatStream that arrived, and calls of ChatStream that have returned.
  Counter attempts;
  Counter returned;

 private:
  grpc::Status Chat(grpc::ServerContext* context, const v1::ChatRequest* request, v1::ChatResponse* response) override {
    attempts.add();
    return on_chat(*context, *request, *response);
  }
  grpc::Status ChatStream(grpc::ServerContext* context, const v1::ChatStreamRequest* request, StreamWriter* writer) override {
    attempts.add();
    const auto status = on_chat_stream(*context, *request, *writer);
    returned.add();
    return status;
  }
  grpc::Status Score(grpc::ServerContext*, const v1::ScoreRequest* request, v1::ScoreResponse* response) override {
    return on_score(*request, *response);
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

inline v1::ChatStreamResponse text_response(const std::string& text) {
  v1::ChatStreamResponse response;
  response.set_request_id("r");
  response.add_choices()->set_text(text);
  return response;
}

/// A stream that sends texts until it has sent `count` or nobody takes them.
inline grpc::Status send_texts(FakeServer::StreamWriter& writer, int count, const std::string& text = "x") {
  const auto response = text_response(text);
  for (int i = 0; i < count; ++i) {
    if (!writer.Write(response)) return grpc::Status::CANCELLED;
  }
  return grpc::Status::OK;
}

/// Waits until the client has ended the call.
inline grpc::Status wait_for_cancellation(const grpc::ServerContext& context) {
  for (int i = 0; i < 1000 && !context.IsCancelled(); ++i) std::this_thread::sleep_for(10ms);
  return context.IsCancelled() ? grpc::Status::CANCELLED : grpc::Status(grpc::StatusCode::INTERNAL, "the client did not cancel");
}

/// A status as Triptych's services send it.
inline grpc::Status status_with_details(grpc::StatusCode code, const std::string& message, const std::string& reason) {
  client::details::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("triptych");
  (*info.mutable_metadata())["field"] = "top_p";
  (*info.mutable_metadata())["limit"] = "1";
  (*info.mutable_metadata())["value"] = "2";
  client::details::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(1);
  retry.mutable_retry_delay()->set_nanos(500'000'000);
  client::details::RequestInfo request;
  request.set_request_id("of the server");
  client::details::Status status;
  status.set_code(code);
  for (const auto& [name, value] :
       {std::pair{"google.rpc.ErrorInfo", info.SerializeAsString()}, std::pair{"google.rpc.RetryInfo", retry.SerializeAsString()},
        std::pair{"google.rpc.RequestInfo", request.SerializeAsString()}}) {
    auto* detail = status.add_details();
    detail->set_type_url("type.googleapis.com/" + std::string(name));
    detail->set_value(value);
  }
  return {code, message, status.SerializeAsString()};
}

}  // namespace triptych::testing
