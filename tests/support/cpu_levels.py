"""Instruction sets with which the CPU kernels are tested."""

from __future__ import annotations

from triptych_common.host.cpu import isas_of_this_cpu

_ALL = isas_of_this_cpu()
#: This CPU's best one and its lowest. `make test-levels` forces each of the others, and then there is only that one. Building the
#: kernels for one of them takes most of a minute.
LEVELS = [*dict.fromkeys([*_ALL[:1], *_ALL[-1:]])]
