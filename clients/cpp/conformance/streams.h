#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include "triptych/client.h"
#include "triptych/conformance/v1/conformance.pb.h"

namespace triptych::conformance {

/// Takes the responses of a stream as a call asks for: pauses after the first one, and cancels after the last one that is wanted.
template <class Response>
class Reader {
 public:
  Reader(const v1::Call& call, google::protobuf::RepeatedPtrField<Response>& responses) : call_(call), responses_(responses) {}

  /// Whether the call is to be cancelled after this response.
  bool take(const Response& response) {
    *responses_.Add() = response;
    if (responses_.size() == 1) std::this_thread::sleep_for(std::chrono::duration<double>(call_.pause_s()));
    return call_.has_cancel_after_responses() && static_cast<std::uint32_t>(responses_.size()) == call_.cancel_after_responses();
  }

 private:
  const v1::Call& call_;
  google::protobuf::RepeatedPtrField<Response>& responses_;
};

/// Reads a stream in a loop.
template <class Response>
void read(Stream<Response> stream, Reader<Response> reader, v1::Outcome& outcome) {
  for (const auto& response : stream) {
    if (reader.take(response)) return;  // the stream's destructor cancels the call
  }
  for (const auto& report : stream.trailing_media()) *outcome.add_trailing_media() = report;
}

/// Reads a stream in callback form. `start` starts the call with the two callbacks.
template <class Response, class Start>
void read_by_callbacks(const Start& start, Reader<Response> reader, const Cancellation& cancellation, v1::Outcome& outcome) {
  bool cancelled = false;
  StreamEnd end;
  AsyncCall call = start(
      [&](const Response& response) {
        if (cancelled) return;
        cancelled = reader.take(response);
        if (cancelled) cancellation.cancel();
      },
      [&](const StreamEnd& stream_end) { end = stream_end; });
  call.wait();
  for (const auto& report : end.trailing_media) *outcome.add_trailing_media() = report;
  if (end.error) end.error->raise();
}

}  // namespace triptych::conformance
