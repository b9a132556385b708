"""The table of what benchmarks.load_memory measured."""

from __future__ import annotations

from benchmarks.report.tables import origin, table


def render(results: dict, source: str) -> str:
    """One model."""
    row = (
        results["load"]["model"],
        f"{results['file_bytes'] / 1e6:.0f}",
        f"{results['added_bytes'] / 1e6:.0f}",
        f"{results['of_file']:.3f}",
    )
    return "\n\n".join([origin(results, source, "private memory"), table(("model", "file, MB", "added, MB", "of the file"), [row])])
