"""Keyword arguments as flags of `triptych serve`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def flags(settings: Mapping[str, object], service: str = "") -> Iterator[str]:
    """The command-line arguments for settings by name. None leaves a setting at its default.

    Args:
        settings: as `{"max_model_len": 512, "cuda_graphs": False}`.
        service: engine, encoder, frontend or gateway; empty for the options of `triptych serve` itself.
    """
    prefix = f"{service}." if service else ""
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            yield f"--{prefix}{flag}" if value else f"--{prefix}no-{flag}"
        elif isinstance(value, (list, tuple)):
            yield f"--{prefix}{flag}={','.join(map(str, value))}"
        else:
            yield f"--{prefix}{flag}={value}"
