"""The environment in which torch starts. Its libraries read these variables once, when they are loaded."""

from __future__ import annotations

import os

from triptych_common.host import lean_imports
from triptych_common.host.cpu import torch_limits

#: Iterations for which a thread of GNU's OpenMP spins at a barrier before it sleeps, about 200 microseconds. With a quarter of this
#: value, a gateway and a frontend on the same cores cost the engine a tenth of its tokens. With this value they cost nothing.
_SPIN_COUNT = "4000"


def set_torch_environment() -> None:
    """Set OpenMP's spinning, what is left out of torch and transformers (see `lean_imports`) and, with $TRIPTYCH_CPU_ISA, the
    instruction set of ATen and oneDNN. What is set already stays.

    Call it before torch is imported.

    OpenMP's threads then spin only briefly at a barrier before they sleep. A step has hundreds of barriers. By default threads spin
    there for milliseconds. When another process computes on the same cores, the thread that the others wait for has often lost its
    core to that process, and the spinning threads keep their cores from both. A step of 20 ms took 180 ms beside one busy process.
    With this setting it takes about 42 ms, and 20.6 ms without the other process.

    Raises:
        StartupError: $TRIPTYCH_CPU_ISA names an instruction set that this CPU does not have.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
    for variable, value in torch_limits().items():
        os.environ.setdefault(variable, value)
    lean_imports.install()
