#include "triptych/accumulate.h"

#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

namespace triptych {
namespace {

template <class Message>
Message parse(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

void expect_equal(const google::protobuf::Message& actual, const google::protobuf::Message& expected) {
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(actual, expected)) << actual.DebugString();
}

TEST(ChatAccumulator, MergesKindsOfDeltasPerChoice) {
  ChatAccumulator accumulator;
  for (const char* text : {
           R"(request_id: "r" model: "m"
              choices { index: 1 text: "one" token_ids: 7 prompt_tokens: 3 }
              choices { index: 0 reasoning: "Let me " prompt_tokens: 3 prompt_logprobs { token_id: 1 } prompt_logprobs { token_id: 2 } })",
           R"(request_id: "r" model: "m"
              choices { index: 0 reasoning: "think." token_ids: 1 logprobs { token_id: 1 } }
              choices { index: 0 text: "Hello" token_ids: 2 logprobs { token_id: 2 } })",
           R"(request_id: "r" model: "m"
              choices { index: 0 text: " world" finish_reason: FINISH_REASON_STOP stop_text: "." }
              choices { index: 1 finish_reason: FINISH_REASON_STOP stop_token_id: 0 })",
           R"(request_id: "r" model: "m" usage { prompt_tokens: 3 } timings { queue_s: 0.5 } media { num_tokens: 4 })",
       }) {
    accumulator.add(parse<v1::ChatStreamResponse>(text));
  }
  expect_equal(accumulator.response(), parse<v1::ChatResponse>(R"(
    request_id: "r" model: "m"
    choices {
      index: 0 text: "Hello world" reasoning: "Let me think." token_ids: [1, 2] logprobs { token_id: 1 } logprobs { token_id: 2 }
      finish_reason: FINISH_REASON_STOP stop_text: "." prompt_logprobs { token_id: 1 } prompt_logprobs { token_id: 2 }
    }
    choices { index: 1 text: "one" token_ids: 7 finish_reason: FINISH_REASON_STOP stop_token_id: 0 }
    usage { prompt_tokens: 3 } timings { queue_s: 0.5 } media { num_tokens: 4 })"));
}

TEST(ChatAccumulator, MergesToolCallsByIndexInAnyOrder) {
  ChatAccumulator accumulator;
  for (const char* text : {
           R"(choices { tool_call { index: 5 id: "b" name: "g" arguments: "{" } })",
           R"(choices { tool_call { index: 2 id: "a" name: "f" arguments: "[1" } })",
           R"(choices { tool_call { index: 5 arguments: "}" } } choices { tool_call { index: 2 arguments: "]" } })",
           R"(choices { index: 4000000000 tool_call { id: "c" name: "h" } })",
       }) {
    accumulator.add(parse<v1::ChatStreamResponse>(text));
  }
  expect_equal(accumulator.response(), parse<v1::ChatResponse>(R"(
    choices { tool_calls { id: "a" name: "f" arguments: "[1]" } tool_calls { id: "b" name: "g" arguments: "{}" } }
    choices { index: 4000000000 tool_calls { id: "c" name: "h" } })"));
}

TEST(ChatAccumulator, KeepsEnumValuesOfANewerServer) {
  ChatAccumulator accumulator;
  v1::ChatStreamResponse response;
  response.add_choices()->set_finish_reason(static_cast<v1::FinishReason>(99));
  accumulator.add(response);
  EXPECT_EQ(accumulator.response().choices(0).finish_reason(), 99);
}

TEST(CompleteAccumulator, MergesCompletions) {
  CompleteAccumulator accumulator;
  accumulator.add(parse<v1::CompleteStreamResponse>(R"(request_id: "r" model: "m" choices { text: "a" })"));
  accumulator.add(parse<v1::CompleteStreamResponse>(
      R"(choices { text: "b" finish_reason: FINISH_REASON_LENGTH } usage { completion_tokens: 2 } media { num_tokens: 4 })"));
  expect_equal(accumulator.response(), parse<v1::CompleteResponse>(R"(
    request_id: "r" model: "m" choices { text: "ab" finish_reason: FINISH_REASON_LENGTH } usage { completion_tokens: 2 }
    media { num_tokens: 4 })"));
}

}  // namespace
}  // namespace triptych
