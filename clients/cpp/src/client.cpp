#include "triptych/client.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "blocking.h"
#include "callback.h"
#include "channel.h"
#include "context.h"
#include "status.h"
#include "triptych/v1/detokenize.grpc.pb.h"
#include "triptych/v1/generation.grpc.pb.h"
#include "triptych/v1/preprocess.grpc.pb.h"

namespace triptych {

using Generation = v1::GenerationService;
using Preprocessing = v1::PreprocessService;
using Detokenizing = v1::DetokenizeService;

struct Client::Impl {
  explicit Impl(ClientOptions client_options)
      : options(std::move(client_options)),
        channel(detail::open_channel(options)),
        generation(channel->grpc),
        preprocessing(channel->grpc),
        detokenizing(channel->grpc) {}

  template <class Stub, class Request, class Response>
  Response unary(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*), const Request& request,
                 const CallOptions& call) const {
    detail::check_size(request);
    const auto context = detail::make_context(channel, options, call);
    Response response;
    const grpc::Status status = (stub.*method)(&context->grpc, request, &response);
    if (const auto error = detail::error_of(status, context->request_id)) error->raise();
    if (call.trailing_media != nullptr) *call.trailing_media = detail::trailing_media(*context);
    return response;
  }

  template <class Request, class Response>
  Stream<Response> stream(std::unique_ptr<grpc::ClientReader<Response>> (Generation::Stub::*method)(grpc::ClientContext*,
                                                                                                    const Request&),
                          const Request& request, const CallOptions& call) {
    detail::check_size(request);
    auto context = detail::make_context(channel, options, call);
    auto reader = (generation.*method)(&context->grpc, request);
    return Stream<Response>(std::make_unique<detail::BlockingSource<Response>>(std::move(context), std::move(reader)));
  }

  template <class Request, class Response>
  AsyncCall async(void (Generation::StubInterface::async_interface::*method)(grpc::ClientContext*, const Request*,
                                                                             grpc::ClientReadReactor<Response>*),
                  const Request& request, OnResponse<Response> on_response, OnDone on_done, const CallOptions& call) {
    detail::check_size(request);
    auto context = detail::make_context(channel, options, call);
    const auto reader = std::make_shared<detail::CallbackReader<Response>>(context, std::move(on_response), std::move(on_done));
    (generation.async()->*method)(&context->grpc, &request, reader.get());
    reader->start(reader);
    return AsyncCall(reader);
  }

  ClientOptions options;
  std::shared_ptr<const detail::SharedChannel> channel;
  Generation::Stub generation;
  Preprocessing::Stub preprocessing;
  Detokenizing::Stub detokenizing;
};

Client::Client(ClientOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

v1::ChatResponse Client::chat(const v1::ChatRequest& request, const CallOptions& options) const {
  return impl_->unary(impl_->generation, &Generation::Stub::Chat, request, options);
}

v1::CompleteResponse Client::complete(const v1::CompleteRequest& request, const CallOptions& options) const {
  return impl_->unary(impl_->generation, &Generation::Stub::Complete, request, options);
}

ChatStream Client::chat_stream(const v1::ChatRequest& request, const CallOptions& options) const {
  v1::ChatStreamRequest stream_request;
  *stream_request.mutable_chat() = request;
  return chat_stream(stream_request, options);
}

ChatStream Client::chat_stream(const v1::ChatStreamRequest& request, const CallOptions& options) const {
  return impl_->stream(&Generation::Stub::ChatStream, request, options);
}

CompleteStream Client::complete_stream(const v1::CompleteRequest& request, const CallOptions& options) const {
  v1::CompleteStreamRequest stream_request;
  *stream_request.mutable_complete() = request;
  return complete_stream(stream_request, options);
}

CompleteStream Client::complete_stream(const v1::CompleteStreamRequest& request, const CallOptions& options) const {
  return impl_->stream(&Generation::Stub::CompleteStream, request, options);
}

AsyncCall Client::chat_async(const v1::ChatStreamRequest& request, OnResponse<v1::ChatStreamResponse> on_response, OnDone on_done,
                             const CallOptions& options) const {
  return impl_->async(&Generation::StubInterface::async_interface::ChatStream, request, std::move(on_response), std::move(on_done),
                      options);
}

AsyncCall Client::complete_async(const v1::CompleteStreamRequest& request, OnResponse<v1::CompleteStreamResponse> on_response,
                                 OnDone on_done, const CallOptions& options) const {
  return impl_->async(&Generation::StubInterface::async_interface::CompleteStream, request, std::move(on_response),
                      std::move(on_done), options);
}

v1::EmbedResponse Client::embed(const v1::EmbedRequest& request, const CallOptions& options) const {
  return impl_->unary(impl_->generation, &Generation::Stub::Embed, request, options);
}

v1::ScoreResponse Client::score(const v1::ScoreRequest& request, const CallOptions& options) const {
  return impl_->unary(impl_->generation, &Generation::Stub::Score, request, options);
}

std::vector<RankedDocument> Client::rerank(const v1::ScoreRequest& request, const CallOptions& options) const {
  const v1::ScoreResponse response = score(request, options);
  std::vector<RankedDocument> ranked;
  for (const float value : response.scores()) ranked.push_back({ranked.size(), value});
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.score > b.score; });
  return ranked;
}

v1::ClassifyResponse Client::classify(const v1::ClassifyRequest& request, const CallOptions& options) const {
  return impl_->unary(impl_->generation, &Generation::Stub::Classify, request, options);
}

v1::TokenizeResponse Client::tokenize(const v1::TokenizeRequest& request, const CallOptions& options) const {
  return impl_->unary(impl_->preprocessing, &Preprocessing::Stub::Tokenize, request, options);
}

v1::DetokenizeResponse Client::detokenize(const v1::DetokenizeRequest& request, const CallOptions& options) const {
  return impl_->unary(impl_->detokenizing, &Detokenizing::Stub::Detokenize, request, options);
}

v1::PreprocessResponse Client::preprocess(const v1::PreprocessRequest& request, const CallOptions& options) const {
  return impl_->unary(impl_->preprocessing, &Preprocessing::Stub::Preprocess, request, options);
}

v1::ListModelsResponse Client::list_models(const CallOptions& options) const {
  return impl_->unary(impl_->generation, &Generation::Stub::ListModels, v1::ListModelsRequest(), options);
}

}  // namespace triptych
