#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "triptych/accumulate.h"
#include "triptych/async.h"
#include "triptych/error.h"
#include "triptych/media.h"
#include "triptych/options.h"
#include "triptych/stream.h"
#include "triptych/v1/detokenize.pb.h"
#include "triptych/v1/generation.pb.h"
#include "triptych/v1/preprocess.pb.h"

namespace triptych {

/// A document of a ScoreRequest with its score.
struct RankedDocument {
  /// Its index in the request.
  std::size_t index = 0;
  float score = 0;
};

/// Client of a frontend. All functions may be called from many threads at once.
///
/// Calls throw subclasses of Error if they fail, and std::invalid_argument for a request of more than 64 MiB. A call that ends with
/// UNAVAILABLE before anything of the answer was received is tried again, at most 4 times in all, with growing pauses of 0.1 s to 2
/// s, within its deadline.
class Client {
 public:
  /// Connects at the first call. Throws std::runtime_error if a file of the TLS options cannot be read, and std::invalid_argument
  /// if only one of certificate and key is given.
  explicit Client(ClientOptions options = {});
  ~Client();
  Client(Client&& other) noexcept;
  Client& operator=(Client&& other) noexcept;

  v1::ChatResponse chat(const v1::ChatRequest& request, const CallOptions& options = {}) const;
  v1::CompleteResponse complete(const v1::CompleteRequest& request, const CallOptions& options = {}) const;

  ChatStream chat_stream(const v1::ChatRequest& request, const CallOptions& options = {}) const;
  ChatStream chat_stream(const v1::ChatStreamRequest& request, const CallOptions& options = {}) const;
  CompleteStream complete_stream(const v1::CompleteRequest& request, const CallOptions& options = {}) const;
  CompleteStream complete_stream(const v1::CompleteStreamRequest& request, const CallOptions& options = {}) const;

  /// The same streams in callback form. Keep the handle: its destructor cancels the call.
  AsyncCall chat_async(const v1::ChatStreamRequest& request, OnResponse<v1::ChatStreamResponse> on_response, OnDone on_done,
                       const CallOptions& options = {}) const;
  AsyncCall complete_async(const v1::CompleteStreamRequest& request, OnResponse<v1::CompleteStreamResponse> on_response,
                           OnDone on_done, const CallOptions& options = {}) const;

  v1::EmbedResponse embed(const v1::EmbedRequest& request, const CallOptions& options = {}) const;
  v1::ScoreResponse score(const v1::ScoreRequest& request, const CallOptions& options = {}) const;
  /// `score`, with the documents in descending order of their scores.
  std::vector<RankedDocument> rerank(const v1::ScoreRequest& request, const CallOptions& options = {}) const;
  v1::ClassifyResponse classify(const v1::ClassifyRequest& request, const CallOptions& options = {}) const;
  v1::TokenizeResponse tokenize(const v1::TokenizeRequest& request, const CallOptions& options = {}) const;
  v1::DetokenizeResponse detokenize(const v1::DetokenizeRequest& request, const CallOptions& options = {}) const;
  v1::PreprocessResponse preprocess(const v1::PreprocessRequest& request, const CallOptions& options = {}) const;
  v1::ListModelsResponse list_models(const CallOptions& options = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace triptych
