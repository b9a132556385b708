package ai.triptych.client;

import ai.triptych.v1.ChoiceDelta;
import ai.triptych.v1.ChatResponse;
import ai.triptych.v1.ChatStreamResponse;
import java.util.List;

/** The responses of {@code chatStream}. */
public final class ChatStream extends ResponseStream<ChatStreamResponse, ChatResponse> {
  private final ChatAccumulator accumulator = new ChatAccumulator();

  ChatStream(ResponseReader<ChatStreamResponse> reader) {
    super(reader);
  }

  @Override
  void accumulate(ChatStreamResponse response) {
    accumulator.add(response);
  }

  @Override
  List<ChoiceDelta> choices(ChatStreamResponse response) {
    return response.getChoicesList();
  }

  @Override
  public ChatResponse response() {
    return accumulator.response();
  }
}
