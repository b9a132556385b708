import { readFileSync } from "node:fs";
import { isIPv4, isIPv6 } from "node:net";
import { type ChannelCredentials, type ChannelOptions, Client, credentials, type Interceptor } from "@grpc/grpc-js";
import { Code, InvalidRequestError } from "./errors.js";

/** Largest message in either direction, in bytes. */
const MAX_MESSAGE_BYTES = 64 * 1024 * 1024;
/** Where the gateway of `triptych serve` takes gRPC. */
const DEFAULT_ADDRESS = "127.0.0.1:50051";

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

/**
 * One attempt, then three more if nothing was received; gRPC gives up earlier at the call's deadline. A full queue is tried again only
 * when its error says so: servers forbid it otherwise. A server that stops ends calls with CANCELLED that it has not taken yet
 * (grpc/grpc#41785).
 */
const RETRIES = {
  maxAttempts: 4,
  initialBackoff: "0.1s",
  maxBackoff: "2s",
  backoffMultiplier: 2,
  retryableStatusCodes: ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"],
};

const OPTIONS: ChannelOptions = {
  "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
  "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
  "grpc.keepalive_time_ms": 20_000,
  "grpc.keepalive_timeout_ms": 10_000,
  // Reconnect to a restarted server within a second or two.
  "grpc.initial_reconnect_backoff_ms": 200,
  "grpc.max_reconnect_backoff_ms": 2_000,
  "grpc.service_config_disable_resolution": 1,
  // A request that is larger than these is sent once only. The defaults are less than a picture: 1 MiB, and 16 MiB for all calls.
  "grpc.per_rpc_retry_buffer_size": MAX_MESSAGE_BYTES,
  "grpc.retry_buffer_size": 16 * MAX_MESSAGE_BYTES,
};

/** A connection to one or more addresses. It is made at the first call, and again after each loss. */
export function openChannel(
  address: string | readonly string[] | undefined,
  tls: TlsOptions | undefined,
  interceptors: Interceptor[],
): Client {
  const addresses = addressesOf(address);
  const [first = DEFAULT_ADDRESS] = addresses;
  const options: ChannelOptions = { ...OPTIONS, "grpc.service_config": serviceConfig(addresses) };
  if (tls?.serverName) options["grpc.ssl_target_name_override"] = tls.serverName;
  // With a list of IP addresses, gRPC knows no name that a certificate could have.
  if (tls?.serverName || addresses.length > 1) options["grpc.default_authority"] = tls?.serverName ?? first;
  const target = addresses.length === 1 ? first : listed(addresses);
  return new Client(target, tls ? tlsCredentials(tls) : credentials.createInsecure(), { ...options, interceptors });
}

function addressesOf(address: string | readonly string[] | undefined): string[] {
  const told = process.env.TRIPTYCH_ADDRESS ?? "";
  const given = address ?? (told === "" ? DEFAULT_ADDRESS : told);
  const parts = typeof given === "string" ? given.split(",") : given;
  const addresses = parts.map((part) => part.trim()).filter((part) => part !== "");
  if (addresses.length === 0) throw invalid("address is empty; give host:port");
  return addresses;
}

/** gRPC's target for several addresses. */
function listed(addresses: readonly string[]): string {
  const all = addresses.map((address) => address.replace(/^localhost:/, "127.0.0.1:"));
  const hosts = all.map((address) => address.replace(/:\d+$/, "").replace(/^\[(.*)\]$/, "$1"));
  if (hosts.every(isIPv4)) return `ipv4:${all.join(",")}`;
  if (hosts.every(isIPv6)) return `ipv6:${all.join(",")}`;
  throw invalid(
    "several addresses must be IP addresses of one family; a name that stands for several is one address: dns:///name:port",
  );
}

function serviceConfig(addresses: readonly string[]): string {
  const isBalanced = addresses.length > 1 || addresses[0]?.startsWith("dns:");
  const methodConfig = [{ name: [{}], retryPolicy: RETRIES }];
  return JSON.stringify({ methodConfig, ...(isBalanced ? { loadBalancingConfig: [{ round_robin: {} }] } : {}) });
}

function invalid(message: string): InvalidRequestError {
  return new InvalidRequestError(message, { code: Code.INVALID_ARGUMENT, field: "address" });
}

function tlsCredentials(tls: TlsOptions): ChannelCredentials {
  const read = (path: string | undefined) => (path ? readFileSync(path) : null);
  return credentials.createSsl(read(tls.rootCertificates), read(tls.privateKey), read(tls.certificate));
}
