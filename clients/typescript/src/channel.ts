import { readFileSync } from "node:fs";
import { type ChannelCredentials, type ChannelOptions, Client, credentials } from "@grpc/grpc-js";

/** Largest message in either direction, in bytes. */
const MAX_MESSAGE_BYTES = 64 * 1024 * 1024;

/** Paths of PEM files. Without any, the server's certificate is checked against the authorities that Node.js knows. */
export interface TlsOptions {
  /** Certificates of the authorities that may have signed the server's certificate. */
  rootCertificates?: string;
  /** This client's own certificate and its key, for servers that want one (mTLS). */
  certificate?: string;
  privateKey?: string;
  /** Name in the server's certificate, where it is not the address's host. */
  serverName?: string;
}

/** One attempt, then three more if nothing was received; gRPC gives up earlier at the call's deadline. */
const RETRIES = {
  maxAttempts: 4,
  initialBackoff: "0.1s",
  maxBackoff: "2s",
  backoffMultiplier: 2,
  retryableStatusCodes: ["UNAVAILABLE"],
};

const OPTIONS: ChannelOptions = {
  "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
  "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
  "grpc.keepalive_time_ms": 20_000,
  "grpc.keepalive_timeout_ms": 10_000,
  // Reconnect to a restarted server within a second or two.
  "grpc.initial_reconnect_backoff_ms": 200,
  "grpc.max_reconnect_backoff_ms": 2_000,
  "grpc.service_config": JSON.stringify({ methodConfig: [{ name: [{}], retryPolicy: RETRIES }] }),
  "grpc.service_config_disable_resolution": 1,
  // A request that is larger than these is sent once only. The defaults are less than a picture: 1 MiB, and 16 MiB for all calls.
  "grpc.per_rpc_retry_buffer_size": MAX_MESSAGE_BYTES,
  "grpc.retry_buffer_size": 16 * MAX_MESSAGE_BYTES,
};

/** A connection to `host:port`. It is made at the first call, and again after each loss. */
export function openChannel(address: string, tls: TlsOptions | undefined): Client {
  const options = { ...OPTIONS };
  if (tls?.serverName) {
    options["grpc.ssl_target_name_override"] = tls.serverName;
    options["grpc.default_authority"] = tls.serverName;
  }
  return new Client(address, tls ? tlsCredentials(tls) : credentials.createInsecure(), options);
}

function tlsCredentials(tls: TlsOptions): ChannelCredentials {
  const read = (path: string | undefined) => (path ? readFileSync(path) : null);
  return credentials.createSsl(read(tls.rootCertificates), read(tls.privateKey), read(tls.certificate));
}
