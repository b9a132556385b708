import { create } from "@bufbuild/protobuf";
import {
  type ChatResponse,
  ChatResponseSchema,
  type ChatStreamResponse,
  type Choice,
  type ChoiceDelta,
  ChoiceSchema,
  type CompleteResponse,
  CompleteResponseSchema,
  type CompleteStreamResponse,
  type ToolCallDelta,
  ToolCallSchema,
} from "./gen/triptych/v1/generation_pb.js";
import { FinishReason } from "./gen/triptych/v1/common_pb.js";

/** Merges the responses of a stream into the answer that the unary call would have given. */
export class Accumulator<
  R extends ChatStreamResponse | CompleteStreamResponse,
  F extends ChatResponse | CompleteResponse,
> {
  /** The answer so far. Later responses change this object. */
  readonly response: F;
  readonly #choices: Choices;

  /** Adds to an answer that is empty so far. */
  constructor(response: F) {
    this.response = response;
    this.#choices = new Choices(response.choices);
  }

  add(response: R): void {
    if (response.requestId) this.response.requestId = response.requestId;
    if (response.model) this.response.model = response.model;
    if (response.usage) this.response.usage = response.usage;
    if (response.timings) this.response.timings = response.timings;
    if (response.media.length > 0) this.response.media = response.media;
    for (const delta of response.choices) this.#choices.add(delta);
  }
}

/** Merges the responses of ChatStream. */
export class ChatAccumulator extends Accumulator<ChatStreamResponse, ChatResponse> {
  constructor() {
    super(create(ChatResponseSchema));
  }
}

/** Merges the responses of CompleteStream. */
export class CompleteAccumulator extends Accumulator<CompleteStreamResponse, CompleteResponse> {
  constructor() {
    super(create(CompleteResponseSchema));
  }
}

/** Merges deltas into a list of choices, which it keeps in the order of their indices. */
class Choices {
  readonly #list: Choice[];
  /** Of each choice: where in its list the tool call of an index is. */
  readonly #toolCalls = new Map<Choice, Map<number, number>>();

  constructor(list: Choice[]) {
    this.#list = list;
  }

  add(delta: ChoiceDelta): void {
    const choice = this.#choice(delta.index);
    if (delta.delta.case === "text") choice.text += delta.delta.value;
    if (delta.delta.case === "reasoning") choice.reasoning += delta.delta.value;
    if (delta.delta.case === "toolCall") this.#addToolCall(choice, delta.delta.value);
    // Not push(...list): a long list is more arguments than a call can have.
    for (const tokenId of delta.tokenIds) choice.tokenIds.push(tokenId);
    for (const logprob of delta.logprobs) choice.logprobs.push(logprob);
    if (delta.promptLogprobs.length > 0) choice.promptLogprobs = delta.promptLogprobs;
    if (delta.finishReason !== FinishReason.UNSPECIFIED) choice.finishReason = delta.finishReason;
    if (delta.matchedStop.case !== undefined) choice.matchedStop = delta.matchedStop;
  }

  #choice(index: number): Choice {
    const found = this.#list.find((choice) => choice.index === index);
    if (found) return found;
    const choice = create(ChoiceSchema, { index });
    this.#list.push(choice);
    this.#list.sort((a, b) => a.index - b.index);
    this.#toolCalls.set(choice, new Map());
    return choice;
  }

  #addToolCall(choice: Choice, piece: ToolCallDelta): void {
    const places = this.#toolCalls.get(choice) ?? new Map<number, number>();
    const place = places.get(piece.index);
    const call = place === undefined ? undefined : choice.toolCalls[place];
    if (call) {
      call.arguments += piece.arguments;
      call.incomplete = piece.incomplete;
    } else {
      places.set(piece.index, choice.toolCalls.length);
      choice.toolCalls.push(
        create(ToolCallSchema, {
          id: piece.id,
          name: piece.name,
          arguments: piece.arguments,
          incomplete: piece.incomplete,
        }),
      );
    }
  }
}
