"""From a client's media items to the input of encoder and engine: file, size, placeholder text, key."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from triptych.errors import InvalidRequestError, ServiceUnavailableError
from triptych.v1 import common_pb2
from triptych_common.media.key import canonical_options, content_hash, media_key_of_hash
from triptych_common.media.processor_options import check_option_numbers
from triptych_common.media.uploads import Uploads
from triptych_common.rpc.principal import Principal
from triptych_common.rpc.security.roles import trusted_tenant
from triptych_common.rpc.structs import from_struct
from triptych_common.telemetry.attributes import MEDIA_NUM_BYTES
from triptych_common.telemetry.span import SpanKind
from triptych_common.telemetry.tracing import OFF, Tracer

from triptych_frontend.errors import check_count, refusal
from triptych_frontend.media.aliases import KnownMedia, UuidAliases
from triptych_frontend.media.budget import MediaBudget, MediaHold
from triptych_frontend.media.fetch import MediaFetcher
from triptych_frontend.media.header import read_header
from triptych_frontend.media.item import MODALITY_NAMES, MediaFile, MediaInput, PreparedMedia
from triptych_frontend.media.processors.placeholders import PlaceholderExpander
from triptych_frontend.settings import FrontendSettings

#: Largest processor options of one item.
_MAX_OPTIONS_BYTES = 16_384
_MAX_UUID_CHARS = 256


class KnowsEncoders(Protocol):
    """The interface of the encoders that the preparer needs."""

    async def until_some(self) -> None:
        """Wait a short time for an encoder. Raises ServiceUnavailableError when none becomes ready."""
        ...

    def embedding_fingerprint(self) -> bytes:
        """What keys depend on in addition to the item. Raises ServiceUnavailableError while no encoder is connected."""
        ...


@dataclass(eq=False, repr=False)
class MediaPreparer:
    """Fetches and inspects the media of a request, and computes their keys.

    Args:
        expander: None for a text-only model, and for a model whose processor does not run here.
        why_text_only: why there is no expander.
        encoders: give the embedding fingerprint that keys depend on.
    """

    expander: PlaceholderExpander | None
    fetcher: MediaFetcher
    settings: FrontendSettings
    encoders: KnowsEncoders
    why_text_only: str = "this model takes text only"
    tracer: Tracer = OFF

    def __post_init__(self) -> None:
        settings = self.settings
        self._limits = settings.media_limits
        self.aliases = UuidAliases(settings.max_media_aliases)
        self.budget = MediaBudget(settings.max_live_media_bytes)
        self.uploads = Uploads(self.budget.reserve, trusted_tenant, settings.max_media_bytes)
        self._pool = ThreadPoolExecutor(settings.num_media_threads, thread_name_prefix="media")

    def close(self) -> None:
        """Release the threads, and drop uploads that no call took."""
        self.uploads.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def prepare(
        self, items: Sequence[tuple[str, common_pb2.MediaItem]], principal: Principal, salt: str, hold: MediaHold
    ) -> list[PreparedMedia]:
        """The items, ready to be encoded, in their order. All of them are fetched concurrently.

        Args:
            items: each with its field in the request.
            principal: the caller. Principals share neither embeddings nor names.
            salt: the client's own salt. Requests with different salts share neither.
            hold: counts the bytes of the files. Its owner releases it, also after an error.

        Raises:
            InvalidRequestError: the model or a limit does not allow the items, or one of them cannot be fetched or read.
            QueueFullError: the media of live calls take too many bytes.
            ServiceUnavailableError: no encoder is available.
        """
        inputs = self._checked(items)
        await self._until_encoders(inputs[0].field)  # check first, so that nothing is fetched in vain
        tasks = [asyncio.create_task(self._prepare_one(media, principal, principal.scoped_salt(salt), hold)) for media in inputs]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _until_encoders(self, field: str) -> None:
        try:
            await self.encoders.until_some()
        except ServiceUnavailableError as error:
            message = f"{field}: {error.message}"
            raise ServiceUnavailableError(message, field=field, retry_after_s=error.retry_after_s) from error

    def _checked(self, items: Sequence[tuple[str, common_pb2.MediaItem]]) -> list[MediaInput]:
        if self.expander is None:
            field, item = items[0]
            name = MODALITY_NAMES.get(item.modality, "media")
            raise InvalidRequestError(f"{self.why_text_only}, and {field} is {name}", field=field, limit="text", value=name)
        limit = self.settings.max_media_items
        if len(items) > limit:
            message = f"at most {limit} media items are taken per request (max_media_items); given: {len(items)}"
            raise InvalidRequestError(message, field=items[limit][0], limit=limit, value=len(items))
        inputs, given, used = [], {}, set[str]()
        counts = Counter(item.modality for _, item in items)
        for field, item in items:
            _check_modality(self.expander, field, item.modality, counts[item.modality])
            check_count(f"{field}.uuid", len(item.uuid), _MAX_UUID_CHARS, "characters")
            all_options = _options(item, field)
            options, names = self.expander.options_for(item.modality, all_options, f"{field}.processor_options")
            if item.HasField("detail"):
                # Options that the client names itself are more specific.
                options = self.expander.detail_options(item.modality, item.detail, f"{field}.detail") | options
            check_option_numbers(options, self.settings.max_image_pixels, f"{field}.processor_options")
            given.update(dict.fromkeys(all_options, field))
            used |= names
            inputs.append(MediaInput(item, field, options))
        unused = next((name for name in given if name not in used), None)
        if unused is not None:
            field = f"{given[unused]}.processor_options"
            message = f"{field}: no item of this request is of a modality that {unused!r} is for"
            raise InvalidRequestError(message, field=field, value=unused)
        return inputs

    async def _prepare_one(self, media: MediaInput, principal: Principal, tenant_salt: str, hold: MediaHold) -> PreparedMedia:
        content = await self._content(media, principal, hold)
        if content is None:
            known = self._known(media, tenant_salt)
        else:
            known = await self._run(lambda: self._inspect(content, media))
            if media.item.uuid:
                self.aliases.learn(tenant_salt, media.item.uuid, known)
        assert self.expander is not None  # noqa: S101 - see _checked
        expander = self.expander
        expansion = await self._run(lambda: expander.expand(known.header, media.options, media.field))
        options_json = canonical_options(media.options)
        key = media_key_of_hash(
            self.encoders.embedding_fingerprint(), known.modality, known.content_hash, options_json, tenant_salt
        )
        return PreparedMedia(known.modality, key, MediaFile(content), media.options, expansion, media.field, tenant_salt)

    async def _content(self, media: MediaInput, principal: Principal, hold: MediaHold) -> bytes | None:
        """The raw file. None if the client sent only a uuid."""
        item, kind = media.item, media.item.WhichOneof("source")
        if kind == "data":
            content = item.data  # each access copies it
            check_count(media.field, len(content), self.settings.max_media_bytes, "bytes")
            hold.take(len(content), media.field)
            return content
        if kind == "upload_id":
            content = self.uploads.look(item.upload_id, principal.tenant, media.field)
            self.uploads.drop(item.upload_id)
            hold.take(len(content), media.field)
            return content
        if kind == "url":
            with self.tracer.part(f"fetch {MODALITY_NAMES[item.modality]}", SpanKind.CLIENT) as span:
                content = await self.fetcher.fetch(
                    item.url, item.modality, media.field, lambda num_bytes: hold.take(num_bytes, media.field), principal.tenant
                )
                if span is not None:  # of the address nothing is noted: it may hold a key
                    span.attributes[MEDIA_NUM_BYTES] = len(content)
            return content
        if item.uuid:
            return None
        raise refusal(media.field, "needs data, a url, an upload_id, or the uuid of an earlier item")

    def _known(self, media: MediaInput, tenant_salt: str) -> KnownMedia:
        known = self.aliases.find(tenant_salt, media.item.uuid)
        if known is None or known.modality != media.item.modality:
            field = f"{media.field}.uuid"
            raise refusal(field, "is not known here (any more); send the item itself with it", value=media.item.uuid)
        return known

    def _inspect(self, content: bytes, media: MediaInput) -> KnownMedia:
        header = read_header(content, media.item.modality, self._limits, media.field, media.item.format)
        return KnownMedia(media.item.modality, content_hash(content), header)

    async def _run(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def _options(item: common_pb2.MediaItem, field: str) -> dict[str, Any]:
    field = f"{field}.processor_options"
    check_count(field, item.processor_options.ByteSize(), _MAX_OPTIONS_BYTES, "bytes")
    try:
        return from_struct(item.processor_options)
    except ValueError as error:
        raise refusal(field, str(error)) from error


def _check_modality(expander: PlaceholderExpander, field: str, modality: common_pb2.Modality, count: int) -> None:
    """Refuse an item that the model does not take beside the others: `count` of its modality."""
    if modality == common_pb2.MODALITY_UNSPECIFIED:
        raise refusal(f"{field}.modality", "must be set")
    if modality not in expander.modalities:
        known = ", ".join(["text", *sorted(MODALITY_NAMES[one] for one in expander.modalities)])
        name = MODALITY_NAMES.get(modality, f"of modality {modality}")
        raise InvalidRequestError(f"this model takes {known}, and {field} is {name}", field=field, limit=known, value=name)
    limit = expander.max_items(modality)
    if limit is not None and count > limit:
        message = f"this model takes at most {limit} {MODALITY_NAMES[modality]} per request; given: {count}"
        raise InvalidRequestError(message, field=field, limit=limit, value=count)
