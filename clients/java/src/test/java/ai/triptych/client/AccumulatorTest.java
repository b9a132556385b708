package ai.triptych.client;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNotSame;

import ai.triptych.v1.ChatResponse;
import ai.triptych.v1.ChatStreamResponse;
import ai.triptych.v1.Choice;
import ai.triptych.v1.ChoiceDelta;
import ai.triptych.v1.CompleteResponse;
import ai.triptych.v1.CompleteStreamResponse;
import ai.triptych.v1.FinishReason;
import ai.triptych.v1.MediaReport;
import ai.triptych.v1.Timings;
import ai.triptych.v1.TokenLogprob;
import ai.triptych.v1.ToolCall;
import ai.triptych.v1.ToolCallDelta;
import ai.triptych.v1.Usage;
import java.util.List;
import org.junit.Test;

/** How the responses of a stream become one. */
public class AccumulatorTest {
  private static ChatStreamResponse response(ChoiceDelta.Builder... deltas) {
    ChatStreamResponse.Builder response = ChatStreamResponse.newBuilder().setRequestId("id").setModel("m");
    for (ChoiceDelta.Builder delta : deltas) response.addChoices(delta);
    return response.build();
  }

  private static ChoiceDelta.Builder call(int index, String id, String name, String arguments, boolean incomplete) {
    return ChoiceDelta.newBuilder()
        .setToolCall(
            ToolCallDelta.newBuilder().setIndex(index).setId(id).setName(name).setArguments(arguments).setIncomplete(incomplete));
  }

  private static ChatResponse merged(ChatStreamResponse... responses) {
    ChatAccumulator accumulator = new ChatAccumulator();
    for (ChatStreamResponse response : responses) accumulator.add(response);
    return accumulator.response();
  }

  @Test
  public void joinsTextByChoice() {
    ChatResponse answer =
        merged(
            response(ChoiceDelta.newBuilder().setIndex(2).setText("c"), ChoiceDelta.newBuilder().setText("a")),
            response(ChoiceDelta.newBuilder().setText("b"), ChoiceDelta.newBuilder().setIndex(2).setReasoning("why")));
    ChatResponse expected =
        ChatResponse.newBuilder()
            .setRequestId("id")
            .setModel("m")
            .addChoices(Choice.newBuilder().setText("ab"))
            .addChoices(Choice.newBuilder().setIndex(2).setText("c").setReasoning("why"))
            .build();
    assertEquals(expected, answer);
  }

  @Test
  public void joinsToolCallsByIndex() {
    ChatResponse answer =
        merged(
            response(call(1, "b", "g", "", false), call(0, "a", "f", "{\"x\":", false)),
            response(call(0, "", "", " 1}", false), call(1, "", "", "{\"", true)));
    assertEquals(
        List.of(
            ToolCall.newBuilder().setId("a").setName("f").setArguments("{\"x\": 1}").build(),
            ToolCall.newBuilder().setId("b").setName("g").setArguments("{\"").setIncomplete(true).build()),
        answer.getChoices(0).getToolCallsList());
  }

  @Test
  public void keepsTokensAndEnds() {
    ChatResponse answer =
        merged(
            response(
                ChoiceDelta.newBuilder()
                    .setPromptTokens(3)
                    .addTokenIds(7)
                    .addPromptLogprobs(TokenLogprob.newBuilder().setToken("p"))
                    .addLogprobs(TokenLogprob.newBuilder().setToken("a"))),
            response(
                ChoiceDelta.newBuilder()
                    .addTokenIds(8)
                    .addLogprobs(TokenLogprob.newBuilder().setToken("b"))
                    .setFinishReason(FinishReason.FINISH_REASON_STOP)
                    .setStopTokenId(0)));
    Choice choice = answer.getChoices(0);
    assertEquals(List.of(7, 8), choice.getTokenIdsList());
    assertEquals(2, choice.getLogprobsCount());
    assertEquals(1, choice.getPromptLogprobsCount());
    assertEquals(FinishReason.FINISH_REASON_STOP, choice.getFinishReason());
    assertEquals(Choice.MatchedStopCase.STOP_TOKEN_ID, choice.getMatchedStopCase());
  }

  @Test
  public void keepsAReasonOfANewerServer() {
    assertEquals(99, merged(response(ChoiceDelta.newBuilder().setFinishReasonValue(99))).getChoices(0).getFinishReasonValue());
  }

  @Test
  public void takesUsageAndMediaOfTheLastResponse() {
    CompleteAccumulator accumulator = new CompleteAccumulator();
    accumulator.add(CompleteStreamResponse.newBuilder().addChoices(ChoiceDelta.newBuilder().setText("a")).build());
    CompleteResponse before = accumulator.response();
    accumulator.add(
        CompleteStreamResponse.newBuilder()
            .setUsage(Usage.newBuilder().setPromptTokens(4))
            .setTimings(Timings.newBuilder().setDecodeS(1))
            .addMedia(MediaReport.newBuilder().setNumTokens(9))
            .build());
    CompleteResponse after = accumulator.response();
    assertNotSame(before, after);
    assertEquals(0, before.getMediaCount());
    assertEquals(4, after.getUsage().getPromptTokens());
    assertEquals(1, after.getTimings().getDecodeS(), 0);
    assertEquals(1, after.getMediaCount());
    assertEquals("a", after.getChoices(0).getText());
  }
}
