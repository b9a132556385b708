/** The client under test of clients/conformance: one Call per line of standard input, one Outcome per line of standard output. */
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { create, fromJsonString, toJsonString } from "@bufbuild/protobuf";
import {
  type Call,
  CallSchema,
  type Outcome,
  OutcomeSchema,
  type Tls,
} from "../src/gen/triptych/conformance/v1/conformance_pb.js";
import {
  type CallOptions,
  type ChatStream,
  type ClientOptions,
  type CompleteStream,
  RequestErrorSchema,
  trailingMedia,
  TriptychClient,
  TriptychError,
} from "../src/index.js";

async function perform(call: Call): Promise<Outcome> {
  const outcome = create(OutcomeSchema, { name: call.name });
  const controller = new AbortController();
  const options: CallOptions = {
    signal: controller.signal,
    timeoutMs: call.timeoutS === undefined ? undefined : call.timeoutS * 1000,
    requestId: call.requestId,
    onTrailer: (trailer) => (outcome.trailingMedia = trailingMedia(trailer)),
  };
  const timer =
    call.cancelAfterResponses === 0
      ? setTimeout(() => {
          controller.abort();
        }, 300)
      : undefined;
  const client = new TriptychClient(clientOptions(call));
  try {
    await send(client, call, options, outcome);
  } catch (error) {
    if (!(error instanceof TriptychError)) throw error;
    if (!controller.signal.aborted) report(error, outcome);
  } finally {
    clearTimeout(timer);
    client.close();
  }
  return outcome;
}

function clientOptions({ address, apiKey, tls }: Call): ClientOptions {
  return { address, apiKey, tls: tls && tlsOptions(tls) };
}

function tlsOptions({ rootCertificates, certificate, privateKey, serverName }: Tls): NonNullable<ClientOptions["tls"]> {
  return { rootCertificates, certificate, privateKey, serverName };
}

async function send(client: TriptychClient, call: Call, options: CallOptions, outcome: Outcome): Promise<void> {
  const { request } = call;
  switch (request.case) {
    case "chat":
      outcome.chat = await client.chat(request.value, options);
      break;
    case "chatStream": {
      const stream = client.chatStream(request.value, options);
      outcome.chat = stream.response; // It grows as the stream is read, and stays when the stream fails.
      await read(stream, outcome.chatStream, call);
      break;
    }
    case "complete":
      outcome.complete = await client.complete(request.value, options);
      break;
    case "completeStream": {
      const stream = client.completeStream(request.value, options);
      outcome.complete = stream.response;
      await read(stream, outcome.completeStream, call);
      break;
    }
    case "embed":
      outcome.embed = await client.embed(request.value, options);
      break;
    case "score":
      outcome.score = await client.score(request.value, options);
      break;
    case "classify":
      outcome.classify = await client.classify(request.value, options);
      break;
    case "tokenize":
      outcome.tokenize = await client.tokenize(request.value, options);
      break;
    case "detokenize":
      outcome.detokenize = await client.detokenize(request.value, options);
      break;
    case "preprocess":
      outcome.preprocess = await client.preprocess(request.value, options);
      break;
    case "listModels":
      outcome.listModels = await client.listModels(request.value, options);
      break;
    default:
      throw new Error(`the call ${call.name} has no request that this program knows`);
  }
}

type Response<S> = S extends AsyncIterable<infer R> ? R : never;

async function read<S extends ChatStream | CompleteStream>(
  stream: S,
  responses: Response<S>[],
  call: Call,
): Promise<void> {
  for await (const response of stream as AsyncIterable<Response<S>>) {
    responses.push(response);
    if (responses.length === call.cancelAfterResponses) break;
    if (responses.length === 1) await sleep(call.pauseS * 1000);
  }
}

function report(error: TriptychError, outcome: Outcome): void {
  const { code, message, reason, field, limit, value, retryAfterS } = error;
  const retry = retryAfterS === undefined ? {} : { retryAfterS };
  outcome.error = create(RequestErrorSchema, { code, message, reason, field, limit, value, ...retry });
  outcome.errorClass = error.name;
  outcome.errorRequestId = error.requestId;
}

for await (const line of createInterface({ input: process.stdin })) {
  const outcome = await perform(fromJsonString(CallSchema, line));
  await new Promise((written) => process.stdout.write(`${toJsonString(OutcomeSchema, outcome)}\n`, written));
}
