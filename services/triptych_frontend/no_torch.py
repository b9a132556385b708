"""Keeps torch out of this process. The frontend needs transformers' tokenizers and templates, but no tensors."""

from __future__ import annotations

import os
import sys

from triptych_common.host import lean_imports


def forbid_torch() -> None:
    """Make `import torch` fail in this process, so that transformers does not detect torch even if it is installed.

    Call it once, at the start of the process and before transformers is imported. transformers then offers only tokenizers,
    configurations and processors: about 100 MB resident after loading a tokenizer, instead of 350 MB and two seconds. This does not
    happen on import, so that a process that needs torch too (a test run) can import this package.
    """
    if sys.modules.get("torch") is not None:
        raise RuntimeError("torch is imported already; forbid_torch() must come first")
    # None in sys.modules is Python's documented way to make an import fail (importlib, "the import system").
    sys.modules["torch"] = None  # type: ignore[assignment]
    # Without this, transformers advises to install torch at each start.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # tokenizers' own threads would compete with ours for the same cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    lean_imports.install()
