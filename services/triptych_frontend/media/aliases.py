"""Names (uuid) that clients gave to their media. A name stands for content that this frontend has seen, and for nothing else."""

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
    #: See triptych_common.media.key.content_hash.
    content_hash: bytes
    header: MediaHeader


class UuidAliases:
    """The names that were used last. For the event loop alone.

    A name belongs to a salt (`Principal.scoped_salt`), so no principal can see or use another's names. Each frontend has its own
    names: a client that reaches another frontend sends the content again.

    Args:
        max_aliases: of all salts together.
    """

    def __init__(self, max_aliases: int) -> None:
        self._max_aliases = max_aliases
        #: (salt, uuid) -> what it stands for
        self._known: OrderedDict[tuple[str, str], KnownMedia] = OrderedDict()
        #: Names that came again with other bytes.
        self.num_corrections = 0

    def __len__(self) -> int:
        return len(self._known)

    def find(self, salt: str, uuid: str) -> KnownMedia | None:
        """What the name stands for; None when it is not known."""
        known = self._known.get((salt, uuid))
        if known is not None:
            self._known.move_to_end((salt, uuid))
        return known

    def learn(self, salt: str, uuid: str, media: KnownMedia) -> None:
        """Note that the name came with this content. From now on it stands for it."""
        old = self._known.get((salt, uuid))
        if old is not None and old.content_hash != media.content_hash:
            self.num_corrections += 1
            log.warning("the media uuid %.64r came with other content than before; the new content is used", uuid)
        self._known[salt, uuid] = media
        self._known.move_to_end((salt, uuid))
        while len(self._known) > self._max_aliases:
            self._known.popitem(last=False)
