import type { Accumulator } from "./accumulate.js";
import { cancelledError } from "./errors.js";
import type {
  ChatResponse,
  ChatStreamResponse,
  CompleteResponse,
  CompleteStreamResponse,
} from "./gen/triptych/v1/generation_pb.js";

const END: IteratorReturnResult<undefined> = { done: true, value: undefined };

/**
 * The responses of a streamed call, once and in order. Leaving a loop over it early (`break`, `return`, an exception) cancels the call on
 * the server. At most 16 responses wait in the client for a slow reader; then the server waits.
 */
export class ResponseStream<
  R extends ChatStreamResponse | CompleteStreamResponse,
  F extends ChatResponse | CompleteResponse,
> implements AsyncIterableIterator<R, undefined, undefined> {
  readonly #source: AsyncGenerator<R, undefined>;
  readonly #cancel: () => void;
  readonly #accumulator: Accumulator<R, F>;
  #state: "open" | "ended" | "cancelled" = "open";
  #error: Error | undefined;

  /** Streams are made by a client: `chatStream`, `completeStream`. */
  constructor(source: AsyncGenerator<R, undefined>, cancel: () => void, accumulator: Accumulator<R, F>) {
    this.#source = source;
    this.#cancel = cancel;
    this.#accumulator = accumulator;
  }

  /** What the responses that were read so far add up to. It stays valid when the call fails or is cancelled. */
  get response(): F {
    return this.#accumulator.response;
  }

  /** The next response. Throws the error that ended the call, once; afterwards the stream has ended. */
  async next(): Promise<IteratorResult<R, undefined>> {
    if (this.#state !== "open") return END;
    try {
      const result = await this.#source.next();
      if (this.#wasCancelled()) return END;
      if (result.done) this.#state = "ended";
      else this.#accumulator.add(result.value);
      return result;
    } catch (error) {
      if (this.#wasCancelled()) return END;
      this.#state = "ended";
      this.#error = error as Error;
      throw error;
    }
  }

  /** Cancels the call, if it has not ended. `for await` calls it when the loop is left early. */
  return(): Promise<IteratorResult<R, undefined>> {
    this.cancel();
    return Promise.resolve(END);
  }

  /** Cancels the call, if it has not ended. The stream then ends without an error. */
  cancel(): void {
    if (this.#state !== "open") return;
    this.#state = "cancelled";
    this.#cancel();
    // The source then ends as well, and lets go of timers and signals.
    this.#source.return(undefined).catch(() => undefined);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** The new text of one choice, piece by piece, in place of whole responses. */
  async *text(index = 0): AsyncGenerator<string, void, undefined> {
    for await (const response of this) {
      for (const choice of response.choices) {
        if (choice.index === index && choice.delta.case === "text") yield choice.delta.value;
      }
    }
  }

  /** Reads the rest and returns the whole answer. Throws the error that ended the call, also if a loop has already thrown it. */
  async finalResponse(): Promise<F> {
    while (!(await this.next()).done);
    if (this.#error) throw this.#error;
    if (this.#wasCancelled()) throw cancelledError();
    return this.response;
  }

  /** As a method, because the state changes while `next` waits. */
  #wasCancelled(): boolean {
    return this.#state === "cancelled";
  }
}
