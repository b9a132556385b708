import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { anyPack, durationFromMs } from "@bufbuild/protobuf/wkt";
import { create, type DescMethod, fromBinary, type Message, toBinary } from "@bufbuild/protobuf";
import * as grpc from "@grpc/grpc-js";
import { ErrorInfoSchema, RetryInfoSchema, StatusSchema } from "../../src/gen/google/rpc/status_pb.js";
import { DetokenizeService } from "../../src/gen/triptych/v1/detokenize_pb.js";
import { GenerationService } from "../../src/gen/triptych/v1/generation_pb.js";
import { PreprocessService } from "../../src/gen/triptych/v1/preprocess_pb.js";
import { type ClientOptions, TriptychClient } from "../../src/index.js";

/** What a test's server does with a call of a method. Methods without one are UNIMPLEMENTED. */
export interface Behaviour {
  unary?: (request: Message, call: grpc.ServerUnaryCall<Message, Message>) => Message | Promise<Message>;
  stream?: (call: grpc.ServerWritableStream<Message, Message>) => void | Promise<void>;
}

const METHODS: DescMethod[] = [GenerationService, PreprocessService, DetokenizeService].flatMap(
  ({ methods }) => methods,
);

/** A real gRPC server in this process, on a free port, until the test ends. */
export async function serve(
  t: TestContext,
  behaviours: Record<string, Behaviour>,
  credentials = grpc.ServerCredentials.createInsecure(),
): Promise<string> {
  const server = new grpc.Server({ "grpc.max_receive_message_length": 64 << 20 });
  for (const method of METHODS) {
    const behaviour = behaviours[method.localName];
    if (behaviour) register(server, method, behaviour);
  }
  const port = await new Promise<number>((resolve, reject) => {
    server.bindAsync("127.0.0.1:0", credentials, (error, bound) => {
      if (error) reject(error);
      else resolve(bound);
    });
  });
  t.after(() => {
    server.forceShutdown();
  });
  return `127.0.0.1:${port}`;
}

/** A client that is closed when the test ends. */
export function connect(t: TestContext, address: string, options: Partial<ClientOptions> = {}): TriptychClient {
  const client = new TriptychClient({ address, ...options });
  t.after(() => {
    client.close();
  });
  return client;
}

function register(server: grpc.Server, method: DescMethod, behaviour: Behaviour): void {
  const definition: grpc.MethodDefinition<Message, Message> = {
    path: `/${method.parent.typeName}/${method.name}`,
    requestStream: false,
    responseStream: method.methodKind === "server_streaming",
    requestSerialize: (request) => Buffer.from(toBinary(method.input, request)),
    requestDeserialize: (bytes) => fromBinary(method.input, bytes),
    responseSerialize: (response) => Buffer.from(toBinary(method.output, response)),
    responseDeserialize: (bytes) => fromBinary(method.output, bytes),
  };
  const unary: grpc.handleUnaryCall<Message, Message> = (call, callback) => {
    Promise.resolve(call.request)
      .then((request) => behaviour.unary?.(request, call))
      .then(
        (response) => {
          callback(null, response ?? null);
        },
        (error: unknown) => {
          callback(error as grpc.ServiceError);
        },
      );
  };
  const stream: grpc.handleServerStreamingCall<Message, Message> = (call) => {
    Promise.resolve(behaviour.stream?.(call)).catch((error: unknown) => {
      call.emit("error", error);
    });
  };
  const handler = method.methodKind === "server_streaming" ? stream : unary;
  server.addService({ [method.localName]: definition }, { [method.localName]: handler });
}

/** Writes a response, and waits until the client takes more of them. */
export async function write(call: grpc.ServerWritableStream<Message, Message>, response: Message): Promise<void> {
  if (!call.write(response)) await new Promise((resolve) => call.once("drain", resolve));
}

/** A status as Triptych's services send it. */
export function serviceError(
  code: grpc.status,
  reason: string,
  message: string,
  retryAfterMs?: number,
): Error & Partial<grpc.StatusObject> {
  const info = { reason, domain: "triptych", metadata: { field: "messages[0].role", limit: "5", value: "7" } };
  const details = [anyPack(ErrorInfoSchema, create(ErrorInfoSchema, info))];
  if (retryAfterMs !== undefined) {
    const retry = create(RetryInfoSchema, { retryDelay: durationFromMs(retryAfterMs) });
    details.push(anyPack(RetryInfoSchema, retry));
  }
  const metadata = new grpc.Metadata();
  const status = create(StatusSchema, { code, message, details });
  metadata.set("grpc-status-details-bin", Buffer.from(toBinary(StatusSchema, status)));
  // As the services say it.
  if (retryAfterMs !== undefined && retryAfterMs <= 60_000)
    metadata.set("grpc-retry-pushback-ms", String(retryAfterMs));
  else if (code === grpc.status.RESOURCE_EXHAUSTED) metadata.set("grpc-retry-pushback-ms", "-1");
  return Object.assign(new Error(message), { code, details: message, metadata });
}

/** An authority, and a certificate of it for `localhost` and for a client, made by openssl; PEM files. */
export function certificates(t: TestContext): { path: (name: string) => string; read: (name: string) => Buffer } {
  const folder = mkdtempSync(join(tmpdir(), "triptych-tls-"));
  t.after(() => {
    rmSync(folder, { recursive: true });
  });
  const openssl = (...args: string[]): void => {
    execFileSync("openssl", args, { cwd: folder, stdio: "pipe" });
  };
  const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
  openssl("req", "-x509", ...key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority");
  for (const name of ["server", "client"]) {
    const own = ["-keyout", `${name}.key`, "-out", `${name}.pem`, "-subj", `/CN=${name}`];
    const names = ["-addext", "subjectAltName=DNS:frontend.test"];
    openssl("req", "-x509", ...key, ...own, ...names, "-CA", "ca.pem", "-CAkey", "ca.key");
  }
  return { path: (name) => join(folder, name), read: (name) => readFileSync(join(folder, name)) };
}
