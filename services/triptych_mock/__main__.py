"""`python -m triptych_mock --port PORT`: runs the mock server."""

from __future__ import annotations

from triptych_common.settings import read_settings

from triptych_mock.service import run
from triptych_mock.settings import MockSettings

if __name__ == "__main__":
    run(read_settings("mock", MockSettings))
