// The client under test of the conformance cases: a line of JSON with a Call comes in, a line of JSON with its Outcome goes out.
// With the argument --callbacks it reads streams in callback form.
#include <google/protobuf/util/json_util.h>

#include <condition_variable>
#include <iostream>
#include <mutex>
#include <string>
#include <string_view>

#include "streams.h"

namespace triptych::conformance {
namespace {

ClientOptions client_options(const v1::Call& call) {
  ClientOptions options;
  options.address = call.address();
  options.api_key = call.api_key();
  if (call.has_tls()) {
    const auto& tls = call.tls();
    options.tls = TlsOptions{tls.root_certificates(), tls.certificate(), tls.private_key(), tls.server_name()};
  }
  return options;
}

/// Cancels after 0.3 s, unless it is destroyed before.
class Timer {
 public:
  explicit Timer(Cancellation cancellation) : thread_([this, cancellation = std::move(cancellation)] { run(cancellation); }) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void run(const Cancellation& cancellation) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::milliseconds(300), [this] { return stopped_; })) cancellation.cancel();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::thread thread_;
};

void stream(const Client& client, const v1::Call& call, const CallOptions& options, bool callbacks, v1::Outcome& outcome) {
  const Reader chat(call, *outcome.mutable_chat_stream());
  const Reader complete(call, *outcome.mutable_complete_stream());
  if (call.has_chat_stream() && callbacks) {
    const auto start = [&](const auto& on_response, const OnDone& on_done) {
      return client.chat_async(call.chat_stream(), on_response, on_done, options);
    };
    read_by_callbacks(start, chat, *options.cancellation, outcome);
  } else if (call.has_chat_stream()) {
    read(client.chat_stream(call.chat_stream(), options), chat, outcome);
  } else if (callbacks) {
    const auto start = [&](const auto& on_response, const OnDone& on_done) {
      return client.complete_async(call.complete_stream(), on_response, on_done, options);
    };
    read_by_callbacks(start, complete, *options.cancellation, outcome);
  } else {
    read(client.complete_stream(call.complete_stream(), options), complete, outcome);
  }
}

void unary(const Client& client, const v1::Call& call, CallOptions options, v1::Outcome& outcome) {
  std::vector<triptych::v1::MediaReport> media;
  options.trailing_media = &media;
  switch (call.request_case()) {
    case v1::Call::kChat:
      *outcome.mutable_chat() = client.chat(call.chat(), options);
      break;
    case v1::Call::kComplete:
      *outcome.mutable_complete() = client.complete(call.complete(), options);
      break;
    case v1::Call::kEmbed:
      *outcome.mutable_embed() = client.embed(call.embed(), options);
      break;
    case v1::Call::kScore:
      *outcome.mutable_score() = client.score(call.score(), options);
      break;
    case v1::Call::kClassify:
      *outcome.mutable_classify() = client.classify(call.classify(), options);
      break;
    case v1::Call::kTokenize:
      *outcome.mutable_tokenize() = client.tokenize(call.tokenize(), options);
      break;
    case v1::Call::kDetokenize:
      *outcome.mutable_detokenize() = client.detokenize(call.detokenize(), options);
      break;
    case v1::Call::kPreprocess:
      *outcome.mutable_preprocess() = client.preprocess(call.preprocess(), options);
      break;
    case v1::Call::kListModels:
      *outcome.mutable_list_models() = client.list_models(options);
      break;
    default:
      throw std::invalid_argument("the call has no known request");
  }
  for (const auto& report : media) *outcome.add_trailing_media() = report;
}

void accumulate(v1::Outcome& outcome) {
  ChatAccumulator chat;
  for (const auto& response : outcome.chat_stream()) chat.add(response);
  if (outcome.chat_stream_size() > 0) *outcome.mutable_chat() = chat.response();
  CompleteAccumulator complete;
  for (const auto& response : outcome.complete_stream()) complete.add(response);
  if (outcome.complete_stream_size() > 0) *outcome.mutable_complete() = complete.response();
}

void set_error(const Error& error, v1::Outcome& outcome) {
  outcome.set_error_class(error.name());
  outcome.set_error_request_id(error.request_id());
  auto& fields = *outcome.mutable_error();
  fields.set_code(static_cast<std::uint32_t>(error.code()));
  fields.set_message(error.message());
  fields.set_reason(error.reason());
  fields.set_field(error.field());
  fields.set_limit(error.limit());
  fields.set_value(error.value());
  if (const auto retry_after_s = error.retry_after_s()) fields.set_retry_after_s(*retry_after_s);
}

v1::Outcome make_call(const v1::Call& call, bool callbacks) {
  v1::Outcome outcome;
  outcome.set_name(call.name());
  CallOptions options;
  options.request_id = call.request_id();
  options.cancellation.emplace();
  if (call.has_timeout_s()) {
    options.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(call.timeout_s()));
  }
  try {
    const Client client(client_options(call));
    std::optional<Timer> timer;
    if (call.has_cancel_after_responses() && call.cancel_after_responses() == 0) timer.emplace(*options.cancellation);
    if (call.has_chat_stream() || call.has_complete_stream()) {
      stream(client, call, options, callbacks, outcome);
    } else {
      unary(client, call, options, outcome);
    }
  } catch (const Error& error) {
    const bool own = call.has_cancel_after_responses() && error.code() == Code::kCancelled;
    if (!own) set_error(error, outcome);
  }
  accumulate(outcome);
  return outcome;
}

int serve(bool callbacks) {
  for (std::string line; std::getline(std::cin, line);) {
    v1::Call call;
    std::string json;
    auto status = google::protobuf::util::JsonStringToMessage(line, &call);
    if (status.ok()) status = google::protobuf::util::MessageToJsonString(make_call(call, callbacks), &json);
    if (!status.ok()) {
      std::cerr << status.ToString() << '\n';
      return 1;
    }
    std::cout << json << std::endl;  // flushed: the runner waits for it
  }
  return 0;
}

}  // namespace
}  // namespace triptych::conformance

int main(int argc, char** argv) { return triptych::conformance::serve(argc > 1 && std::string_view(argv[1]) == "--callbacks"); }
