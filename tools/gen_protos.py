"""Regenerate the Python of protos/: `make protos`. `--check` changes nothing and fails where the files there are out of date.

protoc writes imports that follow the proto path. The public contracts live there (`from triptych.v1 import x_pb2`); the imports of
private ones are rewritten to the place where the files live.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
#: Package of protos/ -> the Python package that its code is generated into, and the folder of that package's root.
PACKAGES = {
    "triptych.v1": ("triptych.v1", ROOT / "clients/python"),
    "triptych.mock.v1": ("triptych.mock.v1", ROOT / "clients/python"),
    "triptych.conformance.v1": ("conformance.pb", ROOT / "clients"),
    "triptych.encoder.storage.v1": ("triptych_encoder.pb", ROOT / "services"),
}
_INIT = '"""Generated from protos/ by `make protos`; not edited by hand."""\n'


def generated() -> dict[Path, str]:
    """File -> what belongs in it."""
    protos = sorted((ROOT / "protos").rglob("*.proto"))
    files: dict[Path, str] = {}
    with tempfile.TemporaryDirectory() as tmp:
        well_known = Path(grpc_tools.__file__).parent / "_proto"
        args = [f"-I{ROOT / 'protos'}", f"-I{well_known}", f"--python_out={tmp}", f"--pyi_out={tmp}", f"--grpc_python_out={tmp}"]
        if protoc.main(["protoc", *args, *map(str, protos)]):
            sys.exit("protoc failed")
        for package, (target, root) in PACKAGES.items():
            made, folder = Path(tmp, *package.split(".")), root / Path(*target.split("."))
            files[folder / "__init__.py"] = _INIT
            files |= {folder / file.name: _with_our_imports(file) for file in made.iterdir() if _is_wanted(file)}
    return files


def _is_wanted(file: Path) -> bool:
    """A proto without services has no stubs worth a file."""
    return file.is_file() and not (file.name.endswith("_pb2_grpc.py") and "Servicer" not in file.read_text())


def _with_our_imports(file: Path) -> str:
    text = file.read_text()
    for package, (target, _) in PACKAGES.items():
        text = re.sub(rf"from {re.escape(package)} import", f"from {target} import", text)
    return text


def _generated_in(folder: Path) -> list[Path]:
    files = [*folder.glob("*_pb2*.py"), *folder.glob("*_pb2*.pyi"), folder / "__init__.py"]
    return [file for file in files if file.is_file()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; end with 1 where generated files are out of date")
    wanted = generated()
    there = {file: file.read_text() for folder in {file.parent for file in wanted} for file in _generated_in(folder)}
    stale = sorted(file for file in {*wanted, *there} if wanted.get(file) != there.get(file))
    if parser.parse_args().check:
        if stale:
            names = ", ".join(str(file.relative_to(ROOT)) for file in stale)
            sys.exit(f"generated code differs from protos/; run `make protos`: {names}")
        return
    for file in stale:
        if file in wanted:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(wanted[file])
        else:
            file.unlink()


if __name__ == "__main__":
    main()
