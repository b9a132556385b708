#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "triptych/v1/generation.pb.h"

namespace triptych {

namespace detail {

/// Merges deltas into whole choices, in ascending order of their indices.
class ChoiceAccumulator {
 public:
  void add(const v1::ChoiceDelta& delta, google::protobuf::RepeatedPtrField<v1::Choice>& choices);

 private:
  std::vector<std::uint32_t> choice_indices_;
  std::map<std::uint32_t, std::vector<std::uint32_t>> tool_call_indices_;  // of each choice
};

}  // namespace detail

/// Merges the responses of a stream into one response, as the unary call would have returned it. After an error it has what came
/// before.
class ChatAccumulator {
 public:
  void add(const v1::ChatStreamResponse& response);
  const v1::ChatResponse& response() const { return response_; }

 private:
  v1::ChatResponse response_;
  detail::ChoiceAccumulator choices_;
};

/// The same for completions.
class CompleteAccumulator {
 public:
  void add(const v1::CompleteStreamResponse& response);
  const v1::CompleteResponse& response() const { return response_; }

 private:
  v1::CompleteResponse response_;
  detail::ChoiceAccumulator choices_;
};

}  // namespace triptych
