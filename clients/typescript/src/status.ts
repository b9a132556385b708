import { fromBinary } from "@bufbuild/protobuf";
import { anyUnpack, durationMs } from "@bufbuild/protobuf/wkt";
import { type Metadata, type StatusObject, status as StatusCode } from "@grpc/grpc-js";
import { type ErrorFields, InternalError, makeError, type TriptychError } from "./errors.js";
import { ErrorInfoSchema, RequestInfoSchema, RetryInfoSchema, StatusSchema } from "./gen/google/rpc/status_pb.js";
import { type MediaReport, MediaReportSchema } from "./gen/triptych/v1/generation_pb.js";

const DETAILS_KEY = "grpc-status-details-bin";
const MEDIA_KEY = "triptych-media-bin";
/** gRPC's own words for a message or metadata above its limits. Its code is RESOURCE_EXHAUSTED, but no queue is full. */
const TOO_LARGE = /message larger than max|metadata size exceeds/i;

/**
 * The error that a call ended with: the one that a service raised, if the status has details, or else the transport's.
 *
 * @param requestId the id that was sent. A service that replaced it says so.
 */
export function fromStatus(status: StatusObject, requestId = ""): TriptychError {
  const fields = { code: status.code, requestId, ...details(status.metadata) };
  if (!fields.hasDetails && status.code === StatusCode.RESOURCE_EXHAUSTED && TOO_LARGE.test(status.details))
    return new InternalError(status.details, fields);
  return makeError(status.details || StatusCode[status.code], fields);
}

function details(trailer: Metadata): Partial<ErrorFields> {
  const [serialized] = trailer.get(DETAILS_KEY);
  if (!(serialized instanceof Uint8Array)) return {};
  const fields: Partial<ErrorFields> = { hasDetails: true };
  try {
    for (const detail of fromBinary(StatusSchema, serialized).details) {
      const info = anyUnpack(detail, ErrorInfoSchema);
      if (info) {
        const { field = "", limit = "", value = "" } = info.metadata;
        Object.assign(fields, { reason: info.reason, field, limit, value });
      }
      const request = anyUnpack(detail, RequestInfoSchema);
      if (request) fields.requestId = request.requestId;
      const retryDelay = anyUnpack(detail, RetryInfoSchema)?.retryDelay;
      if (retryDelay) fields.retryAfterS = durationMs(retryDelay) / 1000;
    }
  } catch {
    return {}; // Not by one of Triptych's services. The code and the message are still good.
  }
  return fields;
}

/** The reports on media in a call's trailing metadata: one per item, in the order of the messages; none if they took over 4 KiB. */
export function trailingMedia(trailer: Metadata): MediaReport[] {
  return trailer.get(MEDIA_KEY).map((entry) => fromBinary(MediaReportSchema, Uint8Array.from(entry as Buffer)));
}
