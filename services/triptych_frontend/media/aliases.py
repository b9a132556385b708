"""Names (uuid) that clients gave to their media. A name refers only to content that this frontend has received."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

from triptych.v1 import common_pb2
from triptych_common.rpc.principal import tenant_of_salt

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
    """The most recently used names. If there are too many, the tenant with most of them loses its oldest.

    Use it on the event loop only.

    A name belongs to a salt (`Principal.scoped_salt`), so no principal can see or use another's names. Each frontend has its own
    names: a client that reaches another frontend sends the content again.

    Args:
        max_aliases: most names, for all salts together.
    """

    def __init__(self, max_aliases: int) -> None:
        self._max_aliases = max_aliases
        #: tenant -> (salt, uuid) -> the item, the one that was used least lately first. None is empty.
        self._tenants: dict[str, OrderedDict[tuple[str, str], KnownMedia]] = {}
        #: Number of times a known name came with different content.
        self.num_corrections = 0

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def find(self, salt: str, uuid: str) -> KnownMedia | None:
        """The item that the name refers to; None if the name is not known."""
        names = self._tenants.get(tenant_of_salt(salt), OrderedDict())
        known = names.get((salt, uuid))
        if known is not None:
            names.move_to_end((salt, uuid))
        return known

    def learn(self, salt: str, uuid: str, media: KnownMedia) -> None:
        """Note that the name came with this content. From now on the name refers to it."""
        names = self._tenants.setdefault(tenant_of_salt(salt), OrderedDict())
        old = names.get((salt, uuid))
        if old is not None and old.content_hash != media.content_hash:
            self.num_corrections += 1
            log.warning("a media uuid came with other content than before; the new content is used")
        names[salt, uuid] = media
        names.move_to_end((salt, uuid))
        if len(self) > self._max_aliases:
            most = max(self._tenants, key=lambda tenant: len(self._tenants[tenant]))
            self._tenants[most].popitem(last=False)
            if not self._tenants[most]:
                del self._tenants[most]
