"""Keeps torch out of this process: the frontend needs transformers' tokenizers and templates, never a tensor."""

from __future__ import annotations

import os
import sys


def forbid_torch() -> None:
    """Make `import torch` fail here, and with it transformers' detection of torch, even where torch is installed.

    Call it once, at the start of the process and before transformers is imported. transformers then offers tokenizers,
    configurations and processors alone: about 100 MB resident after loading a tokenizer, instead of 350 MB and two seconds.
    Nothing calls it on import, so that a process which wants both (a test run) can have both.
    """
    if sys.modules.get("torch") is not None:
        raise RuntimeError("torch is imported already; forbid_torch() must come first")
    # None in sys.modules is Python's own way to say "this import fails" (importlib, "the import system").
    sys.modules["torch"] = None  # type: ignore[assignment]
    # Otherwise transformers advises to install torch on each start.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # tokenizers' own threads would fight with ours for the same cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
