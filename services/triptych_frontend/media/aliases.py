"""Names (uuid) that clients gave to their media. A name refers only to content that this frontend has received."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

from triptych.v1 import common_pb2

from triptych_frontend.media.item import MediaHeader

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownMedia:
    """What the frontend keeps of a media item after its file is gone."""

    modality: common_pb2.Modality
    #: See triptych_common.media.key.content_hash.
    content_hash: bytes
    header: MediaHeader


class UuidAliases:
    """The most recently used names. Use it on the event loop only.

    A name belongs to a salt (`Principal.scoped_salt`), so no principal can see or use another's names. Each frontend has its own
    names: a client that reaches another frontend sends the content again.

    Args:
        max_aliases: most names, for all salts together.
    """

    def __init__(self, max_aliases: int) -> None:
        self._max_aliases = max_aliases
        #: (salt, uuid) -> the item
        self._known: OrderedDict[tuple[str, str], KnownMedia] = OrderedDict()
        #: Number of times a known name came with different content.
        self.num_corrections = 0

    def __len__(self) -> int:
        return len(self._known)

    def find(self, salt: str, uuid: str) -> KnownMedia | None:
        """The item that the name refers to; None if the name is not known."""
        known = self._known.get((salt, uuid))
        if known is not None:
            self._known.move_to_end((salt, uuid))
        return known

    def learn(self, salt: str, uuid: str, media: KnownMedia) -> None:
        """Note that the name came with this content. From now on the name refers to it."""
        old = self._known.get((salt, uuid))
        if old is not None and old.content_hash != media.content_hash:
            self.num_corrections += 1
            log.warning("a media uuid came with other content than before; the new content is used")
        self._known[salt, uuid] = media
        self._known.move_to_end((salt, uuid))
        while len(self._known) > self._max_aliases:
            self._known.popitem(last=False)
