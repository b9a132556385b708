"""Takes the libraries of the playground from npm: `python -m tools.vendor_playground`. It needs npm.

The files are committed, so that nobody else needs npm: they are served as they are, without a build.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .docs.page import ROOT

VENDOR = ROOT / "gateway" / "triptych_gateway" / "playground" / "vendor"
#: File here -> package, version, file in the package (an ES module that imports nothing), SHA-256 of what is written.
LIBRARIES = {
    "markdown-it.js": (
        "markdown-it",
        "15.0.3",
        "dist/browser/markdown-it.esm.min.mjs",
        "40ee4f75f35a4c8d24f1d7a902f4c56a26da8bd9eec5bb02ad4a672d6ba05525",
    ),
    "purify.js": (
        "dompurify",
        "3.5.0",
        "dist/purify.es.mjs",
        "7d86ceda137fff72b0726a35241e92b6edb5610349d04992b625e48ee9871244",
    ),
    "highlight.js": (
        "@highlightjs/cdn-assets",
        "11.12.0",
        "es/highlight.min.js",
        "1ed8fc5256b738b8875b74e4d3f0754f60d6411fb034d618dfbc4e6e6c9999d7",
    ),
}
#: Names a file that is not served.
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*\n?", re.MULTILINE)


def main() -> None:
    """Write the files, and the licences of the packages and of those that they hold."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("npm is needed")
    packages = [f"{package}@{version}" for package, version, *_ in LIBRARIES.values()]
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional", "--prefix", folder, *packages]
        subprocess.run(command, check=True)
        modules = Path(folder) / "node_modules"
        for name, (package, _, path, digest) in LIBRARIES.items():
            text = _SOURCE_MAP.sub("", (modules / package / path).read_text())
            (VENDOR / name).write_text(text)
            if (actual := hashlib.sha256(text.encode()).hexdigest()) != digest:
                print(f"{name} has the SHA-256 {actual} now")
        licences = [_licence(package) for package in sorted(modules.glob("**/package.json"))]
        (VENDOR / "LICENSES.txt").write_text("\n\n\n".join(filter(None, licences)) + "\n")


def _licence(package: Path) -> str:
    """Name, version and licence of a package. Empty for the package.json of a folder inside one."""
    about = json.loads(package.read_text())
    if "version" not in about:
        return ""
    # DOMPurify has two, of which one may be chosen: the first is Apache's.
    text, *_ = sorted(path for path in package.parent.iterdir() if path.name.lower().startswith("license"))
    head = f"{about['name']} {about['version']}, {about['license']}"
    return f"{head}\n{'=' * len(head)}\n\n{text.read_text().strip()}"


if __name__ == "__main__":
    main()
