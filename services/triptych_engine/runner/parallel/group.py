"""The ranks of one engine, which compute a model together."""

from __future__ import annotations

import datetime
import functools
import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import psutil
import torch
from torch import distributed

from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.place import Place
from triptych_engine.runner.verdicts import Verdicts

T = TypeVar("T")
#: How long a rank waits for the others in one operation: for all that they do between two of them, such as reading their weights.
#: A rank that hangs in a step is noticed earlier, by the engine.
_TIMEOUT = datetime.timedelta(minutes=30)


class HostMemory(Protocol):
    """What ranks of one host exchange tensors with, faster than through sockets."""

    @property
    def address(self) -> int:
        """For kernels that add up within them."""
        ...

    def sum(self, data: torch.Tensor) -> None:
        """Replace a dense float32 tensor by the sum of all ranks', added in their order."""
        ...

    def gather(self, data: torch.Tensor, outs: Sequence[torch.Tensor]) -> None:
        """Fill `outs`, dense tensors, with the data of each rank, of the same size."""
        ...


class RankGroup:
    """One rank's view of all ranks. Each operation is called by all of them, in the same order.

    Args:
        device: where tensors are that are added or joined. A GPU's go through NCCL, a CPU's through Gloo.
    """

    def __init__(self, place: Place, device: torch.device) -> None:
        self.rank, self.size = place.rank, place.size
        #: None if tensors go through sockets, or from GPU to GPU.
        self.memory: HostMemory | None = None
        self._is_host = device.type == "cpu"
        distributed.init_process_group(
            "gloo" if self._is_host else "cpu:gloo,cuda:nccl",
            store=_store(place),
            rank=place.rank,
            world_size=place.size,
            timeout=_TIMEOUT,
        )

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' tensors, of the same shape and dtype, which may be in the memory of the argument. All ranks get the
        same bits.

        On CPUs it is added in the order of the ranks, in float32 at least: an element's sum does not depend on its place in the
        tensor.
        """
        tensor = tensor.contiguous()
        if not self._is_host:
            distributed.all_reduce(tensor)
            return tensor
        if self.memory is not None:
            wide = tensor.float()
            self.memory.sum(wide)
            return wide.to(tensor.dtype)
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        distributed.all_gather(parts, tensor)
        total = parts[0] if tensor.dtype.itemsize >= 4 else parts[0].float()
        for part in parts[1:]:
            total += part
        return total.to(tensor.dtype)

    def all_gather(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """All ranks' tensors, one after the other in the last dimension. sizes: of this dimension, of each rank."""
        tensor = tensor.contiguous()
        if self.memory is not None:
            parts = [tensor.new_empty(*tensor.shape[:-1], size) for size in sizes]
            self.memory.gather(tensor, parts)
            return torch.cat(parts, -1)
        if len(set(sizes)) == 1:
            parts = [torch.empty_like(tensor) for _ in sizes]
            distributed.all_gather(parts, tensor)
            return torch.cat(parts, -1)
        widest = max(sizes)  # Gloo wants equal shapes
        parts = [tensor.new_empty(*tensor.shape[:-1], widest) for _ in sizes]
        distributed.all_gather(parts, torch.nn.functional.pad(tensor, (0, widest - tensor.shape[-1])))
        return torch.cat([part[..., :size] for part, size in zip(parts, sizes, strict=True)], -1)

    def agree(self, answer: T, question: Any = None) -> T:
        """What all ranks go by, given each one's answer to the same question: the reason against it that one has, or else no if
        one says no, or the smallest number. Other answers are each rank's own. Raises RuntimeError if they were asked different
        questions."""
        asked: list[Any] = [None] * self.size
        distributed.all_gather_object(asked, (question, answer))
        if any(one != question for one, _ in asked):
            raise RuntimeError(f"the ranks went different ways: {', '.join(str(one) for one, _ in asked)}")
        answers = [one for _, one in asked]
        reasons = [one for one in answers if isinstance(one, str)]
        if reasons:
            return reasons[0]  # type: ignore[return-value]
        if any(one is None for one in answers):
            return None  # type: ignore[return-value]
        return min(answers) if isinstance(answer, (int, float)) else answer  # also of bool


def _store(place: Place) -> distributed.Store:
    """Where the ranks tell each other their addresses. Also chooses the network on which they have them."""
    if place.num_nodes == 1:
        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # other hosts cannot connect
        return distributed.FileStore(place.rendezvous, place.size)
    host, _, port = place.rendezvous.rpartition(":")
    if (interface := _interface_to(host, int(port))) is not None:
        # What they choose by themselves may have an address that other hosts do not reach.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # otherwise eth1 is eth10, too
    return distributed.TCPStore(host, int(port), place.size, is_master=place.rank == 0, timeout=_TIMEOUT)


def _interface_to(host: str, port: int) -> str | None:
    """The network interface by which this host reaches another one, or itself."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect(address)  # sends nothing
        own = sock.getsockname()[0]
    found = (name for name, some in psutil.net_if_addrs().items() if any(one.address.split("%")[0] == own for one in some))
    return next(found, "lo" if ipaddress.ip_address(own).is_loopback else None)  # lo has 127.0.0.2 without naming it


class AgreedVerdicts(Verdicts):
    """Verdicts of all ranks: what one refuses, none does. Otherwise they would wait for each other in different places."""

    def __init__(self, own: Verdicts, group: RankGroup) -> None:
        self._known, self._group = own._known, group

    def of(self, question: Any, find: Callable[[], T]) -> T:
        return super().of(question, lambda: self._group.agree(find(), question))


def rank_group(config: RunnerConfig) -> RankGroup | None:
    """The group of this process; None if it computes alone. A process belongs to one group for as long as it lives."""
    return None if config.place.size == 1 else _group_of(config.place, config.device)


_group_of = functools.cache(RankGroup)
