"""Settings of the encoder."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import SettingsConfigDict
from triptych_common.media.limits import MediaLimitSettings
from triptych_common.settings import DEFAULT_MODEL, Port, parse_bytes

Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]


class EncoderSettings(MediaLimitSettings):
    """Flags of `triptych encoder`; environment variables TRIPTYCH_ENCODER_*."""

    model_config = SettingsConfigDict(env_prefix="TRIPTYCH_ENCODER_")

    port: Annotated[Port, Field(description="Port to listen on; 0 takes a free one.")] = 50052
    model: Annotated[str, Field(description="Directory, built-in name or hub id.")] = DEFAULT_MODEL
    served_model_name: Annotated[str | None, Field(description="Name that clients use; by default the model's.")] = None
    max_model_len: Annotated[
        int | None, Field(ge=2, description="Longest sequence of the engine, in tokens; reported in ModelInfo.")
    ] = None
    dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"],
        Field(description="Dtype of the embeddings; auto takes the checkpoint's."),
    ] = "auto"
    device: Annotated[
        str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu or cuda[:N]; auto takes a GPU where there is one.")
    ] = "auto"
    num_threads: Annotated[
        int | None,
        Field(
            ge=1,
            description="Compute threads; by default 1 on up to 4 cores, else half of the cores. A batch that finds more cores "
            "idle takes those too.",
        ),
    ] = None
    niceness: Annotated[
        int | None,
        Field(
            ge=0,
            le=19,
            description="Niceness of decoding and encoding; an engine on the same cores then goes first. By default 10 on a CPU.",
        ),
    ] = None
    num_preprocess_threads: Annotated[int, Field(ge=1, le=64, description="Threads that decode and preprocess.")] = 2
    max_batch_embeddings: Annotated[
        int | None,
        Field(ge=1, description="Most embeddings per batch; by default 256 on a CPU, where batches gain nothing, 16384 on a GPU."),
    ] = None
    max_queue: Annotated[int, Field(ge=1, description="Items in flight at once; further ones are refused.")] = 256
    max_queue_bytes: Annotated[Bytes, Field(description="Bytes of the files of items in flight; further items are refused.")] = (
        512 << 20
    )
    max_prepared: Annotated[int, Field(ge=1, description="Items in memory as pixels or samples at once.")] = 16
    max_items_per_request: Annotated[int, Field(ge=1, description="Most items per Encode call.")] = 256
    max_decode_s: Annotated[float, Field(gt=0, description="Longest decoding of an audio or video file, in seconds.")] = 60.0
    cache_memory: Annotated[Bytes, Field(description="Memory for cached embeddings, e.g. 512M or 2G.")] = 1 << 30
    store_url: Annotated[
        str | None,
        Field(
            repr=False,
            description="Address of a Valkey or Redis that encoders share, e.g. redis://host:6379/0; none by default. A URL with a "
            "password is better set by environment.",
        ),
    ] = None
    store_ttl_s: Annotated[float, Field(ge=1, description="How long the shared store keeps an item, in seconds.")] = 86_400.0
