/** The client of Triptych for Node.js. `./rest` is the one for browsers. */
export * from "./accumulate.js";
export type { CallOptions } from "./call.js";
export type { TlsOptions } from "./channel.js";
export * from "./client.js";
export * from "./errors.js";
export * from "./files.js";
export * from "./gen/triptych/v1/common_pb.js";
export * from "./gen/triptych/v1/detokenize_pb.js";
export { CacheTier, type EncodeTimings, EncodeTimingsSchema } from "./gen/triptych/v1/encoder_pb.js";
export * from "./gen/triptych/v1/generation_pb.js";
export * from "./gen/triptych/v1/preprocess_pb.js";
export * from "./media.js";
export { trailingMedia } from "./status.js";
export { ResponseStream } from "./stream.js";
