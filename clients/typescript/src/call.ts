import type { DescMessage, DescMethod, DescMethodServerStreaming, DescMethodUnary } from "@bufbuild/protobuf";
import { create, fromBinary, type MessageInitShape, type MessageShape, toBinary } from "@bufbuild/protobuf";
import * as grpc from "@grpc/grpc-js";
import { built, checkedTimeout } from "./checks.js";
import { cancelledError, Code, InvalidRequestError, ServiceUnavailableError, type TriptychError } from "./errors.js";
import { fromStatus } from "./status.js";

/** Options of one call. */
export interface CallOptions {
  /** Cancels the call, also on the server. The call fails with RequestAbortedError, whose cause is the signal's reason. */
  signal?: AbortSignal | undefined;
  /** Milliseconds until the call fails with DeadlineExceededError, retries included. Default: the client's. Infinity: none. */
  timeoutMs?: number | undefined;
  /** Sent as x-request-id: at most 128 characters of A-Z a-z 0-9 . _ : / + = @ -. Default: the server makes one. */
  requestId?: string | undefined;
  /** Further metadata. Values of keys that end in -bin are bytes. */
  metadata?: Record<string, string | Uint8Array> | undefined;
  /** Gets the trailing metadata when the call has ended, also if it failed. See `trailingMedia`. */
  onTrailer?: ((trailer: grpc.Metadata) => void) | undefined;
}

/** Makes a unary call. Throws TriptychError. */
export async function callUnary<I extends DescMessage, O extends DescMessage>(
  client: grpc.Client,
  method: DescMethodUnary<I, O>,
  request: MessageInitShape<I>,
  options: CallOptions,
): Promise<MessageShape<O>> {
  const prepared = prepare(client, method, request, options);
  return new Promise((resolve, reject) => {
    const settle = (error: grpc.ServiceError | null, response?: MessageShape<O>): void => {
      if (error) reject(errorOf(error, options));
      else if (response) resolve(response);
    };
    void watch(client.makeUnaryRequest(...prepared, settle), options);
  });
}

/** Starts a call that streams its responses. The responses throw TriptychError; `cancel` ends the call. */
export function callServerStream<I extends DescMessage, O extends DescMessage>(
  client: grpc.Client,
  method: DescMethodServerStreaming<I, O>,
  request: MessageInitShape<I>,
  options: CallOptions,
): { responses: AsyncGenerator<MessageShape<O>, undefined>; cancel: () => void } {
  const call = client.makeServerStreamRequest(...prepare(client, method, request, options));
  call.on("error", () => undefined); // The status says the same. Without a listener, Node.js ends the process.
  const cancel = (): void => {
    call.cancel();
  };
  return { responses: read(call, watch(call, options), options), cancel };
}

/** Reads as fast as its caller does: of a stream of objects, Node.js holds at most 16 that nobody has asked for. */
async function* read<R>(
  call: grpc.ClientReadableStream<R>,
  ended: Promise<grpc.StatusObject>,
  options: CallOptions,
): AsyncGenerator<R, undefined> {
  try {
    for await (const response of call) {
      if (options.signal?.aborted) break; // What Node.js still holds is not wanted any more.
      yield response as R;
    }
  } catch {
    // The status below says why.
  }
  const status = await ended;
  if (options.signal?.aborted) throw cancelledError(options.signal.reason);
  if (status.code !== grpc.status.OK) throw errorOf(status, options);
  return undefined;
}

/** Binds the call to the signal until it ends. */
function watch(
  call: grpc.ClientUnaryCall | grpc.ClientReadableStream<unknown>,
  options: CallOptions,
): Promise<grpc.StatusObject> {
  const abort = (): void => {
    call.cancel();
  };
  options.signal?.addEventListener("abort", abort, { once: true });
  return new Promise((resolve) => {
    call.once("status", (status: grpc.StatusObject) => {
      options.signal?.removeEventListener("abort", abort);
      options.onTrailer?.(status.metadata);
      resolve(status);
    });
  });
}

function errorOf(status: grpc.StatusObject, options: CallOptions): TriptychError {
  const isOurs = options.signal?.aborted && status.code === grpc.status.CANCELLED;
  return isOurs ? cancelledError(options.signal?.reason) : fromStatus(status, options.requestId);
}

/** What gRPC wants for a call: path, serializer and parser, request, metadata, deadline. */
function prepare<I extends DescMessage, O extends DescMessage>(
  client: grpc.Client,
  method: DescMethod & { input: I; output: O },
  request: MessageInitShape<I>,
  options: CallOptions,
) {
  if (options.signal?.aborted) throw cancelledError(options.signal.reason);
  if (client.getChannel().getConnectivityState(false) === grpc.connectivityState.SHUTDOWN) {
    throw new ServiceUnavailableError("this client is closed", { code: Code.UNAVAILABLE });
  }
  const bytes = built(() => toBinary(method.input, create(method.input, request)));
  const message = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  // Fields of bytes are parts of what is parsed: given a Buffer, they would be Buffers, whose `slice` and JSON are others.
  const parse = (bytes: Buffer): MessageShape<O> =>
    fromBinary(method.output, new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength));
  const metadata = metadataOf(options);
  const timeoutMs = checkedTimeout(options.timeoutMs);
  const within = timeoutMs === undefined ? {} : { deadline: Date.now() + timeoutMs };
  const path = `/${method.parent.typeName}/${method.name}`;
  return [path, (bytes: Buffer) => bytes, parse, message, metadata, within] as const;
}

function metadataOf(options: CallOptions): grpc.Metadata {
  const metadata = new grpc.Metadata();
  const entries = options.requestId ? { ...options.metadata, "x-request-id": options.requestId } : options.metadata;
  for (const [key, value] of Object.entries(entries ?? {})) {
    try {
      metadata.set(key, typeof value === "string" ? value : Buffer.from(value));
    } catch {
      // gRPC's own error shows the value, which can be a secret.
      const message = `metadata ${key}: HTTP/2 cannot carry this name or value`;
      throw new InvalidRequestError(message, { code: Code.INVALID_ARGUMENT, field: key });
    }
  }
  return metadata;
}
