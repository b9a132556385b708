"""Regenerates the Python code of protos/: `make protos`.

protoc writes imports that follow the proto path (`from triptych.v1 import x_pb2`). These would claim the name of the client
package, so they are rewritten to the package where the files are.
"""

import re
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
#: Package of protos/ -> the Python package that its code is generated into.
PACKAGES = {
    "triptych.v1": "triptych_common.pb",
    "triptych.encoder.storage.v1": "triptych_encoder.pb",
}


def main() -> None:
    protos = sorted((ROOT / "protos").rglob("*.proto"))
    with tempfile.TemporaryDirectory() as tmp:
        well_known = Path(grpc_tools.__file__).parent / "_proto"
        args = [f"-I{ROOT / 'protos'}", f"-I{well_known}", f"--python_out={tmp}", f"--pyi_out={tmp}", f"--grpc_python_out={tmp}"]
        if protoc.main(["protoc", *args, *map(str, protos)]):
            sys.exit("protoc failed")
        for package, target in PACKAGES.items():
            write(Path(tmp, *package.split(".")), ROOT / "services" / Path(*target.split(".")))


def write(made: Path, out: Path) -> None:
    """Replace the generated files of a package in one of our folders."""
    out.mkdir(exist_ok=True)
    for old in out.glob("*_pb2*"):
        old.unlink()
    for file in made.iterdir():
        if file.is_dir() or (file.name.endswith("_pb2_grpc.py") and "Servicer" not in file.read_text()):
            continue  # stubs of a proto without services are not needed
        text = file.read_text()
        for package, target in PACKAGES.items():
            text = re.sub(rf"from {re.escape(package)} import", f"from {target} import", text)
        (out / file.name).write_text(text)
    (out / "__init__.py").write_text('"""Generated from protos/ by `make protos`; not edited by hand."""\n')


if __name__ == "__main__":
    main()
