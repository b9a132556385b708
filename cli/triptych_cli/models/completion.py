"""Names of models, for the shell to complete."""

from __future__ import annotations

import contextlib


def complete_model(incomplete: str) -> list[str]:
    """The models of `triptych list` that begin so. Shells complete paths where there is none."""
    from triptych_cli.models.installed import installed

    # A cache that cannot be read is no reason to write into the user's line.
    with contextlib.suppress(OSError):
        return [model.name for model in installed() if model.name.startswith(incomplete)]
    return []
