package ai.triptych.client;

import ai.triptych.v1.ChoiceDelta;
import ai.triptych.v1.CompleteResponse;
import ai.triptych.v1.CompleteStreamResponse;
import java.util.List;

/** The responses of {@code completeStream}. */
public final class CompleteStream extends ResponseStream<CompleteStreamResponse, CompleteResponse> {
  private final CompleteAccumulator accumulator = new CompleteAccumulator();

  CompleteStream(ResponseReader<CompleteStreamResponse> reader) {
    super(reader);
  }

  @Override
  void accumulate(CompleteStreamResponse response) {
    accumulator.add(response);
  }

  @Override
  List<ChoiceDelta> choices(CompleteStreamResponse response) {
    return response.getChoicesList();
  }

  @Override
  public CompleteResponse response() {
    return accumulator.response();
  }
}
