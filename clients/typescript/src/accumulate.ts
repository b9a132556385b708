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
  type ToolCall,
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
  /** Of each choice: its tool calls by their indices. */
  readonly #toolCalls = new Map<Choice, Map<number, ToolCall>>();

  /** Adds to an answer that is empty so far. */
  constructor(response: F) {
    this.response = response;
  }

  add(response: R): void {
    if (response.requestId) this.response.requestId = response.requestId;
    if (response.model) this.response.model = response.model;
    if (response.usage) this.response.usage = response.usage;
    if (response.timings) this.response.timings = response.timings;
    if (response.media.length > 0) this.response.media = response.media;
    for (const delta of response.choices) this.#addDelta(this.#choice(delta.index), delta);
  }

  #addDelta(choice: Choice, delta: ChoiceDelta): void {
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

  /** The choice of an index. Choices are kept in the order of their indices. */
  #choice(index: number): Choice {
    const { choices } = this.response;
    const found = choices.find((choice) => choice.index === index);
    if (found) return found;
    const choice = create(ChoiceSchema, { index });
    choices.push(choice);
    choices.sort((a, b) => a.index - b.index);
    this.#toolCalls.set(choice, new Map());
    return choice;
  }

  #addToolCall(choice: Choice, piece: ToolCallDelta): void {
    const calls = this.#toolCalls.get(choice) ?? new Map<number, ToolCall>();
    let call = calls.get(piece.index);
    if (!call) {
      call = create(ToolCallSchema, { id: piece.id, name: piece.name });
      calls.set(piece.index, call);
      choice.toolCalls.push(call);
    }
    call.arguments += piece.arguments;
    call.incomplete = piece.incomplete;
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
