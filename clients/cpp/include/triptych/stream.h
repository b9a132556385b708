#pragma once

#include <cstddef>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "triptych/error.h"
#include "triptych/v1/generation.pb.h"

namespace triptych {

namespace detail {

/// What a Stream reads from.
template <class Response>
class StreamSource {
 public:
  virtual ~StreamSource() = default;
  virtual bool next(Response& response) = 0;
  virtual void cancel() noexcept = 0;
  virtual const std::vector<v1::MediaReport>& trailing_media() const = 0;
};

}  // namespace detail

/// The responses of a call as they arrive: a move-only range that can be read once.
///
///     for (const auto& response : client.chat_stream(request)) {
///       for (const auto& choice : response.choices()) std::cout << choice.text();
///     }
///
/// Nothing is read ahead but what the transport holds, so a reader that pauses makes the server wait. The destructor cancels the
/// call if it has not ended, and waits until the transport has let go of it. One thread reads; `cancel()` may be called from any
/// thread.
template <class Response>
class Stream {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Response;
    using difference_type = std::ptrdiff_t;
    using pointer = const Response*;
    using reference = const Response&;

    Iterator() = default;
    reference operator*() const { return stream_->current_; }
    pointer operator->() const { return &stream_->current_; }
    Iterator& operator++() {
      if (!stream_->next(stream_->current_)) stream_ = nullptr;
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.stream_ == b.stream_; }
    friend bool operator!=(const Iterator& a, const Iterator& b) { return a.stream_ != b.stream_; }

   private:
    friend class Stream;
    explicit Iterator(Stream* stream) : stream_(stream) {}
    Stream* stream_ = nullptr;
  };

  explicit Stream(std::unique_ptr<detail::StreamSource<Response>> source) : source_(std::move(source)) {}

  /// Waits for the first response. Throws as `next` does, here and when the iterator advances.
  Iterator begin() { return ++Iterator(this); }
  Iterator end() { return Iterator(); }

  /// Waits for the next response.
  ///
  /// Returns false at the end of a call that succeeded. Throws a subclass of Error at the end of one that failed. Responses that
  /// were returned before stay valid.
  bool next(Response& response) { return source_->next(response); }

  /// Ends the call on the server too. The reader gets RequestAbortedError with the code kCancelled, after responses that were
  /// received.
  void cancel() noexcept { source_->cancel(); }

  /// Reports on media in the trailing metadata. Empty before the end.
  const std::vector<v1::MediaReport>& trailing_media() const { return source_->trailing_media(); }

 private:
  std::unique_ptr<detail::StreamSource<Response>> source_;
  Response current_;
};

using ChatStream = Stream<v1::ChatStreamResponse>;
using CompleteStream = Stream<v1::CompleteStreamResponse>;

}  // namespace triptych
