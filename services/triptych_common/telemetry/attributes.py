"""Names of all attributes and events of our spans.

`gen_ai.*`, `http.*`, `error.*` and the like are those of OpenTelemetry's semantic conventions 1.44.0. Those of `gen_ai` are in
development, so they may change with a new version. What the conventions have no name for is under `triptych.*`.
"""

from __future__ import annotations

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

# -- Semantic conventions ---------------------------------------------------------------------------------------------------------

SERVICE_NAME = "service.name"
SERVICE_VERSION = "service.version"
SERVICE_INSTANCE_ID = "service.instance.id"

HTTP_REQUEST_METHOD = "http.request.method"
HTTP_RESPONSE_STATUS_CODE = "http.response.status_code"
HTTP_ROUTE = "http.route"
URL_PATH = "url.path"
URL_SCHEME = "url.scheme"

RPC_SYSTEM = "rpc.system.name"
RPC_METHOD = "rpc.method"

ERROR_TYPE = "error.type"

GEN_AI_PROVIDER_NAME = "gen_ai.provider.name"
GEN_AI_OPERATION_NAME = "gen_ai.operation.name"
GEN_AI_REQUEST_MODEL = "gen_ai.request.model"
GEN_AI_REQUEST_STREAM = "gen_ai.request.stream"
GEN_AI_REQUEST_CHOICE_COUNT = "gen_ai.request.choice.count"
GEN_AI_RESPONSE_MODEL = "gen_ai.response.model"
GEN_AI_RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
GEN_AI_USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
GEN_AI_USAGE_REASONING_OUTPUT_TOKENS = "gen_ai.usage.reasoning.output_tokens"

# -- Ours -------------------------------------------------------------------------------------------------------------------------

PROVIDER = "triptych"
#: Id of the client's request, as in logs and in the header x-request-id.
REQUEST_ID = "triptych.request_id"
#: True if the caller went away, or cancelled the call.
CANCELLED = "triptych.cancelled"
#: Texts, conversations or pairs of one call that generates nothing.
NUM_INPUTS = "triptych.num_inputs"
#: Which of a request's sequences.
SEQUENCE_INDEX = "triptych.sequence.index"
NUM_PREEMPTIONS = "triptych.num_preemptions"
#: Of a media item: image, audio or video; the beginning of its key, in hexadecimal digits; its tokens in the prompt.
MEDIA_MODALITY = "triptych.media.modality"
MEDIA_KEY = "triptych.media.key"
MEDIA_NUM_TOKENS = "triptych.media.num_tokens"
MEDIA_NUM_BYTES = "triptych.media.num_bytes"
#: Where an encoder found embeddings: miss (computed), local, shared, joined.
MEDIA_TIER = "triptych.media.tier"
#: Where an engine got the embeddings of each item from: encoder, engine, prefix_cache.
MEDIA_SOURCES = "triptych.media.sources"

#: Event: an encoder has the embeddings that an engine fetches, and begins to send them.
FOUND = "triptych.media.found"
#: Event: a sequence lost its KV blocks, to be computed again.
PREEMPTED = "triptych.preempted"
