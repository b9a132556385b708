"""Names that clients gave to their media: a name stands for content that this frontend saw, and is never trusted further."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

from triptych_common.pb import common_pb2

from triptych_frontend.media.item import MediaHeader

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownMedia:
    """What is left of a media item whose bytes are gone."""

    modality: common_pb2.Modality
    #: See triptych_common.media.key.
    content_hash: bytes
    header: MediaHeader


class UuidAliases:
    """Least recently used names, per tenant. For the event loop alone.

    Args:
        max_aliases: of all tenants together.
    """

    def __init__(self, max_aliases: int) -> None:
        self._max_aliases = max_aliases
        #: (tenant, uuid) -> what it stands for
        self._known: OrderedDict[tuple[str, str], KnownMedia] = OrderedDict()
        #: Names that came again with other bytes.
        self.num_corrections = 0

    def __len__(self) -> int:
        return len(self._known)

    def find(self, tenant: str, uuid: str) -> KnownMedia | None:
        """What the name stands for, if it is known."""
        known = self._known.get((tenant, uuid))
        if known is not None:
            self._known.move_to_end((tenant, uuid))
        return known

    def learn(self, tenant: str, uuid: str, media: KnownMedia) -> None:
        """The name came with this content, which from now on is what it stands for."""
        old = self._known.get((tenant, uuid))
        if old is not None and old.content_hash != media.content_hash:
            self.num_corrections += 1
            log.warning("the media uuid %.64r came with other content than before; the new content is used", uuid)
        self._known[tenant, uuid] = media
        self._known.move_to_end((tenant, uuid))
        while len(self._known) > self._max_aliases:
            self._known.popitem(last=False)
