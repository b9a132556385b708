import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Client } from "@grpc/grpc-js";
import { ChatAccumulator, CompleteAccumulator } from "./accumulate.js";
import { type CallOptions, callServerStream, callUnary } from "./call.js";
import { openChannel, type TlsOptions } from "./channel.js";
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
  /** host:port of a frontend. */
  address: string;
  /** Absent: the connection is not encrypted. `{}`: the server's certificate is one that Node.js trusts. */
  tls?: TlsOptions | undefined;
  /** Sent with each call as `authorization: Bearer ...`. */
  apiKey?: string | undefined;
  /** Default deadline of a call, in milliseconds. Default: none. */
  timeoutMs?: number | undefined;
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

  constructor(options: ClientOptions) {
    this.#client = openChannel(options.address, options.tls);
    const metadata = options.apiKey ? { authorization: `Bearer ${options.apiKey}` } : {};
    this.#defaults = { timeoutMs: options.timeoutMs, metadata };
  }

  /** Answers a conversation, once all choices have ended. */
  chat(
    request: MessageInitShape<typeof generation.ChatRequestSchema>,
    options?: CallOptions,
  ): Promise<generation.ChatResponse> {
    return callUnary(this.#client, GenerationService.method.chat, request, this.#with(options));
  }

  /** Answers a conversation, with text as it appears. The call starts at once. */
  chatStream(request: MessageInitShape<typeof generation.ChatStreamRequestSchema>, options?: CallOptions): ChatStream {
    const { method } = GenerationService;
    const { responses, cancel } = callServerStream(this.#client, method.chatStream, request, this.#with(options));
    return new ResponseStream(responses, cancel, new ChatAccumulator());
  }

  /** Continues a prompt, and answers once all choices have ended. */
  complete(
    request: MessageInitShape<typeof generation.CompleteRequestSchema>,
    options?: CallOptions,
  ): Promise<generation.CompleteResponse> {
    return callUnary(this.#client, GenerationService.method.complete, request, this.#with(options));
  }

  /** Continues a prompt, with text as it appears. The call starts at once. */
  completeStream(
    request: MessageInitShape<typeof generation.CompleteStreamRequestSchema>,
    options?: CallOptions,
  ): CompleteStream {
    const { method } = GenerationService;
    const { responses, cancel } = callServerStream(this.#client, method.completeStream, request, this.#with(options));
    return new ResponseStream(responses, cancel, new CompleteAccumulator());
  }

  /** Vectors of inputs, in their order. */
  embed(
    request: MessageInitShape<typeof generation.EmbedRequestSchema>,
    options?: CallOptions,
  ): Promise<generation.EmbedResponse> {
    return callUnary(this.#client, GenerationService.method.embed, request, this.#with(options));
  }

  /** How well texts fit together, pair by pair. */
  score(
    request: MessageInitShape<typeof generation.ScoreRequestSchema>,
    options?: CallOptions,
  ): Promise<generation.ScoreResponse> {
    return callUnary(this.#client, GenerationService.method.score, request, this.#with(options));
  }

  /** The scores of `score` with their documents' places, best first. Equal scores keep the documents' order. */
  async rerank(
    request: MessageInitShape<typeof generation.ScoreRequestSchema>,
    options?: CallOptions,
  ): Promise<RankedDocument[]> {
    const { scores } = await this.score(request, options);
    return scores.map((score, index) => ({ index, score })).sort((a, b) => b.score - a.score);
  }

  /** Values of a classifier's labels, for each input. */
  classify(
    request: MessageInitShape<typeof generation.ClassifyRequestSchema>,
    options?: CallOptions,
  ): Promise<generation.ClassifyResponse> {
    return callUnary(this.#client, GenerationService.method.classify, request, this.#with(options));
  }

  /** Token ids of a text. */
  tokenize(request: MessageInitShape<typeof TokenizeRequestSchema>, options?: CallOptions): Promise<TokenizeResponse> {
    return callUnary(this.#client, PreprocessService.method.tokenize, request, this.#with(options));
  }

  /** The text of token ids. */
  detokenize(
    request: MessageInitShape<typeof DetokenizeRequestSchema>,
    options?: CallOptions,
  ): Promise<DetokenizeResponse> {
    return callUnary(this.#client, DetokenizeService.method.detokenize, request, this.#with(options));
  }

  /** The prompt that a chat or a completion would have: text, token ids, places of media. */
  preprocess(
    request: MessageInitShape<typeof PreprocessRequestSchema>,
    options?: CallOptions,
  ): Promise<PreprocessResponse> {
    return callUnary(this.#client, PreprocessService.method.preprocess, request, this.#with(options));
  }

  /** The models that requests can name. */
  listModels(
    request: MessageInitShape<typeof generation.ListModelsRequestSchema> = {},
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
