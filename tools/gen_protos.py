"""Regenerate triptych_common/pb from protos/: `make protos`.

protoc writes imports that follow the proto path (`from triptych.v1 import x_pb2`), which would claim the name of the client
package; they are rewritten to the place where the files live.
"""

import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "services" / "triptych_common" / "pb"


def main() -> None:
    protos = sorted((ROOT / "protos").rglob("*.proto"))
    with tempfile.TemporaryDirectory() as tmp:
        args = [f"-I{ROOT / 'protos'}", f"--python_out={tmp}", f"--pyi_out={tmp}", f"--grpc_python_out={tmp}"]
        if protoc.main(["protoc", *args, *map(str, protos)]):
            sys.exit("protoc failed")
        OUT.mkdir(exist_ok=True)
        for old in OUT.glob("*_pb2*"):
            old.unlink()
        for file in Path(tmp, "triptych", "v1").iterdir():
            text = re.sub(r"from triptych\.v1 import", "from triptych_common.pb import", file.read_text())
            (OUT / file.name).write_text(text)
    (OUT / "__init__.py").write_text('"""Generated from protos/ by `make protos`; not edited by hand."""\n')


if __name__ == "__main__":
    main()
