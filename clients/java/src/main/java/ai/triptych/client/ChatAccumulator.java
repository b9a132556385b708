package ai.triptych.client;

import ai.triptych.v1.ChatResponse;
import ai.triptych.v1.ChatStreamResponse;

/**
 * Merges the responses of {@code chatStream} into the one response that {@code chat} gives.
 *
 * <p>Choices are merged by index. Pieces of text and reasoning are joined. Tool calls are merged by their index too: id and name
 * are those of the first piece that has them, the pieces of arguments are joined. Token ids and log probabilities are appended.
 * {@link ChatStream#response()} does this already.
 */
public final class ChatAccumulator {
  private final ChatResponse.Builder rest = ChatResponse.newBuilder();
  private final ChoiceMerger choices = new ChoiceMerger();

  /** Makes an accumulator that has nothing yet. */
  public ChatAccumulator() {}

  /**
   * Takes the next response of the stream.
   *
   * @param response the response
   */
  public void add(ChatStreamResponse response) {
    if (!response.getRequestId().isEmpty()) rest.setRequestId(response.getRequestId());
    if (!response.getModel().isEmpty()) rest.setModel(response.getModel());
    choices.add(response.getChoicesList());
    if (response.hasUsage()) rest.setUsage(response.getUsage());
    if (response.hasTimings()) rest.setTimings(response.getTimings());
    rest.addAllMedia(response.getMediaList());
  }

  /**
   * What has come so far.
   *
   * @return a new message; a choice whose finish reason is unspecified has not ended
   */
  public ChatResponse response() {
    return rest.clone().addAllChoices(choices.merged()).build();
  }
}
