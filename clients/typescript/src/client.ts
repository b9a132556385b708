import { clone, create, type MessageInitShape as Init } from "@bufbuild/protobuf";
import type { Client, Interceptor } from "@grpc/grpc-js";
import { ChatAccumulator, CompleteAccumulator } from "./accumulate.js";
import { type CallOptions, callServerStream, callUnary } from "./call.js";
import { openChannel, type TlsOptions } from "./channel.js";
import { Code, InvalidRequestError } from "./errors.js";
import { ConstraintSchema, FinishReason } from "./gen/triptych/v1/common_pb.js";
import {
  type DetokenizeRequestSchema,
  type DetokenizeResponse,
  DetokenizeService,
} from "./gen/triptych/v1/detokenize_pb.js";
import * as generation from "./gen/triptych/v1/generation_pb.js";
import {
  type PreprocessRequestSchema,
  type PreprocessResponse,
  PreprocessService,
  type TokenizeRequestSchema,
  type TokenizeResponse,
} from "./gen/triptych/v1/preprocess_pb.js";
import { ResponseStream } from "./stream.js";

const { GenerationService } = generation;

/** Where the server is, and what all calls have. */
export interface ClientOptions {
  /**
   * host:port of a gateway. Several, or all that a `dns:///name:port` stands for, take turns. Default: those of TRIPTYCH_ADDRESS, where
   * commas separate them, or 127.0.0.1:50051.
   */
  address?: string | readonly string[] | undefined;
  /** Absent: the connection is not encrypted. `{}`: the server's certificate is one that Node.js trusts. */
  tls?: TlsOptions | undefined;
  /** Sent with each call as `authorization: Bearer ...`. Default: that of TRIPTYCH_API_KEY, if it is set. */
  apiKey?: string | undefined;
  /** Default deadline of a call, in milliseconds. Default: none. */
  timeoutMs?: number | undefined;
  /** Of gRPC, around each call. */
  interceptors?: Interceptor[] | undefined;
}

/** What the text of an answer must be, and how it becomes a value. With zod: `{ schema: z.toJSONSchema(T), parse: T.parse }`. */
export interface ResponseFormat<T> {
  /** A JSON Schema. */
  schema: object;
  /** Checks the parsed JSON, and returns the value. Default: the JSON as it is. */
  parse?: (json: unknown) => T;
}

/** An answer, and what its text says. */
export interface Parsed<T> {
  value: T;
  response: generation.ChatResponse;
}

/** The answer's text ended before it was complete, for example at `maxTokens`. */
export class IncompleteAnswerError extends Error {
  override readonly name = "IncompleteAnswerError";

  constructor(readonly response: generation.ChatResponse) {
    super(`the answer is incomplete: it ended after ${String(response.choices[0]?.text.length ?? 0)} characters`);
  }
}

/** One document of `rerank`. */
export interface RankedDocument {
  /** Its place among the documents of the request. */
  index: number;
  score: number;
}

export type ChatStream = ResponseStream<generation.ChatStreamResponse, generation.ChatResponse>;
export type CompleteStream = ResponseStream<generation.CompleteStreamResponse, generation.CompleteResponse>;

/**
 * A client of Triptych's services. Requests and responses are the messages of triptych.v1; a request may be a plain object with some of
 * the fields. Calls that fail throw `TriptychError`.
 */
export class TriptychClient {
  readonly #client: Client;
  readonly #defaults: CallOptions;

  constructor(options: ClientOptions = {}) {
    this.#client = openChannel(options.address, options.tls, options.interceptors ?? []);
    const apiKey = options.apiKey ?? process.env.TRIPTYCH_API_KEY;
    this.#defaults = { timeoutMs: options.timeoutMs, metadata: apiKey ? { authorization: `Bearer ${apiKey}` } : {} };
  }

  /** Answers a conversation, once all choices have ended. */
  chat(request: Init<typeof generation.ChatRequestSchema>, options?: CallOptions): Promise<generation.ChatResponse> {
    return callUnary(this.#client, GenerationService.method.chat, request, this.#with(options));
  }

  /** Answers a conversation, with text as it appears. The call starts at once. */
  chatStream(request: Init<typeof generation.ChatStreamRequestSchema>, options?: CallOptions): ChatStream {
    const { method } = GenerationService;
    const { responses, cancel } = callServerStream(this.#client, method.chatStream, request, this.#with(options));
    return new ResponseStream(responses, cancel, new ChatAccumulator());
  }

  /**
   * Answers a conversation with a value: the text follows a JSON Schema. Throws IncompleteAnswerError if the text was cut, and what
   * `format.parse` throws.
   */
  async parse<T>(
    request: Init<typeof generation.ChatRequestSchema>,
    format: ResponseFormat<T>,
    options?: CallOptions,
  ): Promise<Parsed<T>> {
    const message = clone(generation.ChatRequestSchema, create(generation.ChatRequestSchema, request));
    if (message.options?.constraint) {
      const text = "the request has a constraint already";
      throw new InvalidRequestError(text, { code: Code.INVALID_ARGUMENT, field: "options.constraint" });
    }
    message.options ??= create(generation.GenerationOptionsSchema);
    message.options.constraint = create(ConstraintSchema, {
      kind: { case: "jsonSchema", value: JSON.stringify(format.schema) },
    });
    const response = await this.chat(message, options);
    const [choice] = response.choices;
    if (choice?.finishReason !== FinishReason.STOP) throw new IncompleteAnswerError(response);
    const json: unknown = JSON.parse(choice.text);
    return { value: format.parse ? format.parse(json) : (json as T), response };
  }

  /** Continues a prompt, and answers once all choices have ended. */
  complete(
    request: Init<typeof generation.CompleteRequestSchema>,
    options?: CallOptions,
  ): Promise<generation.CompleteResponse> {
    return callUnary(this.#client, GenerationService.method.complete, request, this.#with(options));
  }

  /** Continues a prompt, with text as it appears. The call starts at once. */
  completeStream(request: Init<typeof generation.CompleteStreamRequestSchema>, options?: CallOptions): CompleteStream {
    const { method } = GenerationService;
    const { responses, cancel } = callServerStream(this.#client, method.completeStream, request, this.#with(options));
    return new ResponseStream(responses, cancel, new CompleteAccumulator());
  }

  /** Vectors of inputs, in their order. */
  embed(request: Init<typeof generation.EmbedRequestSchema>, options?: CallOptions): Promise<generation.EmbedResponse> {
    return callUnary(this.#client, GenerationService.method.embed, request, this.#with(options));
  }

  /** How well texts fit together, pair by pair. */
  score(request: Init<typeof generation.ScoreRequestSchema>, options?: CallOptions): Promise<generation.ScoreResponse> {
    return callUnary(this.#client, GenerationService.method.score, request, this.#with(options));
  }

  /** The scores of `score` with their documents' places, best first. Equal scores keep the documents' order. */
  async rerank(request: Init<typeof generation.ScoreRequestSchema>, options?: CallOptions): Promise<RankedDocument[]> {
    const { scores } = await this.score(request, options);
    return scores.map((score, index) => ({ index, score })).sort((a, b) => b.score - a.score);
  }

  /** Values of a classifier's labels, for each input. */
  classify(
    request: Init<typeof generation.ClassifyRequestSchema>,
    options?: CallOptions,
  ): Promise<generation.ClassifyResponse> {
    return callUnary(this.#client, GenerationService.method.classify, request, this.#with(options));
  }

  /** Token ids of a text. */
  tokenize(request: Init<typeof TokenizeRequestSchema>, options?: CallOptions): Promise<TokenizeResponse> {
    return callUnary(this.#client, PreprocessService.method.tokenize, request, this.#with(options));
  }

  /** The text of token ids. */
  detokenize(request: Init<typeof DetokenizeRequestSchema>, options?: CallOptions): Promise<DetokenizeResponse> {
    return callUnary(this.#client, DetokenizeService.method.detokenize, request, this.#with(options));
  }

  /** The prompt that a chat or a completion would have: text, token ids, places of media. */
  preprocess(request: Init<typeof PreprocessRequestSchema>, options?: CallOptions): Promise<PreprocessResponse> {
    return callUnary(this.#client, PreprocessService.method.preprocess, request, this.#with(options));
  }

  /** The models that requests can name. */
  listModels(
    request: Init<typeof generation.ListModelsRequestSchema> = {},
    options?: CallOptions,
  ): Promise<generation.ListModelsResponse> {
    return callUnary(this.#client, GenerationService.method.listModels, request, this.#with(options));
  }

  /** Closes the connection. Calls that have started end as usual; new calls fail. */
  close(): void {
    this.#client.close();
  }

  #with(options: CallOptions = {}): CallOptions {
    const { timeoutMs = this.#defaults.timeoutMs } = options;
    return { ...options, timeoutMs, metadata: { ...this.#defaults.metadata, ...options.metadata } };
  }
}
