"""How packages of Triptych were installed."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit


def install_command(package: str, extra: str) -> str:
    """The command that adds the packages of an extra, from the checkout or the file from which `package` was installed."""
    try:
        # What pip records (PEP 610) of a package that does not come from an index.
        source = json.loads(distribution(package).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        source = {}
    if "url" not in source:
        return f"pip install '{package}[{extra}]'"
    if source.get("dir_info", {}).get("editable"):
        return f"pip install -e '{unquote(urlsplit(source['url']).path)}[{extra}]'"
    return f"pip install '{package}[{extra}] @ {source['url']}'"
