#include "triptych/accumulate.h"

#include <algorithm>

namespace triptych {
namespace {

/// The element whose index is `index`. `indices` are those of the list's elements, in ascending order; a new one is put in its
/// place.
template <class Element>
Element& at_index(google::protobuf::RepeatedPtrField<Element>& list, std::vector<std::uint32_t>& indices, std::uint32_t index) {
  const auto found = std::lower_bound(indices.begin(), indices.end(), index);
  const int position = static_cast<int>(found - indices.begin());
  if (found == indices.end() || *found != index) {
    indices.insert(found, index);
    list.Add();
    for (int i = list.size() - 1; i > position; --i) list.SwapElements(i, i - 1);
  }
  return *list.Mutable(position);
}

void add_tool_call(const v1::ToolCallDelta& delta, v1::ToolCall& call) {
  if (!delta.id().empty()) call.set_id(delta.id());
  if (!delta.name().empty()) call.set_name(delta.name());
  call.mutable_arguments()->append(delta.arguments());
  call.set_incomplete(delta.incomplete());
}

/// The fields that ChatStreamResponse and CompleteStreamResponse share.
template <class StreamResponse, class Response>
void add_response(const StreamResponse& part, detail::ChoiceAccumulator& choices, Response& whole) {
  if (!part.request_id().empty()) whole.set_request_id(part.request_id());
  if (!part.model().empty()) whole.set_model(part.model());
  for (const v1::ChoiceDelta& delta : part.choices()) choices.add(delta, *whole.mutable_choices());
  if (part.has_usage()) *whole.mutable_usage() = part.usage();
  if (part.has_timings()) *whole.mutable_timings() = part.timings();
  if (part.media_size() > 0) *whole.mutable_media() = part.media();
}

}  // namespace

void detail::ChoiceAccumulator::add(const v1::ChoiceDelta& delta, google::protobuf::RepeatedPtrField<v1::Choice>& choices) {
  v1::Choice& choice = at_index(choices, choice_indices_, delta.index());
  choice.set_index(delta.index());
  switch (delta.delta_case()) {
    case v1::ChoiceDelta::kText:
      choice.mutable_text()->append(delta.text());
      break;
    case v1::ChoiceDelta::kReasoning:
      choice.mutable_reasoning()->append(delta.reasoning());
      break;
    case v1::ChoiceDelta::kToolCall: {
      auto& indices = tool_call_indices_[delta.index()];
      add_tool_call(delta.tool_call(), at_index(*choice.mutable_tool_calls(), indices, delta.tool_call().index()));
      break;
    }
    case v1::ChoiceDelta::DELTA_NOT_SET:
      break;
  }
  choice.mutable_token_ids()->MergeFrom(delta.token_ids());
  choice.mutable_logprobs()->MergeFrom(delta.logprobs());
  if (delta.prompt_logprobs_size() > 0) *choice.mutable_prompt_logprobs() = delta.prompt_logprobs();
  if (delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) choice.set_finish_reason(delta.finish_reason());
  if (delta.has_stop_text()) choice.set_stop_text(delta.stop_text());
  if (delta.has_stop_token_id()) choice.set_stop_token_id(delta.stop_token_id());
}

void ChatAccumulator::add(const v1::ChatStreamResponse& response) { add_response(response, choices_, response_); }

void CompleteAccumulator::add(const v1::CompleteStreamResponse& response) { add_response(response, choices_, response_); }

}  // namespace triptych
