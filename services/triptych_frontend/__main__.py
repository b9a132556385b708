"""`python -m triptych_frontend --model NAME --port PORT`: runs only the frontend."""

from __future__ import annotations

from triptych_common.settings import read_settings

from triptych_frontend.service import run
from triptych_frontend.settings import FrontendSettings

if __name__ == "__main__":
    run(read_settings("frontend", FrontendSettings))
