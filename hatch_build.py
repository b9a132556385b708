"""Adds the prebuilt CPU kernels in $TRIPTYCH_PREBUILT_KERNELS, a directory that `make release` sets, to the wheel of the services.

Without it, the wheel suits every platform, and the engine compiles its kernels when it starts for the first time.
"""

from __future__ import annotations

import os
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = os.environ.get("TRIPTYCH_PREBUILT_KERNELS")
        if folder and version != "editable":
            build_data["force_include"][folder] = "triptych_engine/runner/cpu/prebuilt"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
