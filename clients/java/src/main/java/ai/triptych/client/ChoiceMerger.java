package ai.triptych.client;

import ai.triptych.v1.Choice;
import ai.triptych.v1.ChoiceDelta;
import ai.triptych.v1.FinishReason;
import ai.triptych.v1.ToolCall;
import ai.triptych.v1.ToolCallDelta;
import java.util.List;
import java.util.SortedMap;
import java.util.TreeMap;

/** Merges deltas into whole choices, in the order of their indices. */
final class ChoiceMerger {
  private final SortedMap<Integer, Merged> choices = new TreeMap<>(Integer::compareUnsigned);

  void add(Iterable<ChoiceDelta> deltas) {
    for (ChoiceDelta delta : deltas) choices.computeIfAbsent(delta.getIndex(), index -> new Merged()).add(delta);
  }

  List<Choice> merged() {
    return choices.entrySet().stream().map(entry -> entry.getValue().choice(entry.getKey())).toList();
  }

  /** One choice so far. A message's string cannot grow, and to join it anew for each delta would take quadratic time. */
  private static final class Merged {
    private final StringBuilder text = new StringBuilder();
    private final StringBuilder reasoning = new StringBuilder();
    private final SortedMap<Integer, MergedToolCall> toolCalls = new TreeMap<>(Integer::compareUnsigned);
    private final Choice.Builder rest = Choice.newBuilder();

    void add(ChoiceDelta delta) {
      switch (delta.getDeltaCase()) {
        case TEXT -> text.append(delta.getText());
        case REASONING -> reasoning.append(delta.getReasoning());
        case TOOL_CALL ->
            toolCalls.computeIfAbsent(delta.getToolCall().getIndex(), index -> new MergedToolCall()).add(delta.getToolCall());
        case DELTA_NOT_SET -> {} // only token ids or an end
      }
      rest.addAllTokenIds(delta.getTokenIdsList());
      rest.addAllLogprobs(delta.getLogprobsList());
      rest.addAllPromptLogprobs(delta.getPromptLogprobsList());
      // By number: a newer server may have reasons that this client does not know.
      int reason = delta.getFinishReasonValue();
      if (reason != FinishReason.FINISH_REASON_UNSPECIFIED_VALUE) rest.setFinishReasonValue(reason);
      if (delta.hasStopText()) rest.setStopText(delta.getStopText());
      if (delta.hasStopTokenId()) rest.setStopTokenId(delta.getStopTokenId());
    }

    Choice choice(int index) {
      Choice.Builder choice = rest.clone().setIndex(index).setText(text.toString()).setReasoning(reasoning.toString());
      for (MergedToolCall call : toolCalls.values()) choice.addToolCalls(call.toolCall());
      return choice.build();
    }
  }

  private static final class MergedToolCall {
    private String id = "";
    private String name = "";
    private final StringBuilder arguments = new StringBuilder();
    private boolean incomplete;

    void add(ToolCallDelta delta) {
      if (id.isEmpty()) id = delta.getId();
      if (name.isEmpty()) name = delta.getName();
      arguments.append(delta.getArguments());
      incomplete = delta.getIncomplete();
    }

    ToolCall toolCall() {
      return ToolCall.newBuilder()
          .setId(id)
          .setName(name)
          .setArguments(arguments.toString())
          .setIncomplete(incomplete)
          .build();
    }
  }
}
