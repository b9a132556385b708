"""Lines of the logs, as people and as collectors read them."""

from __future__ import annotations

import json
import re
import subprocess
import sys

_PROGRAM = """
import logging, sys
from triptych_common.telemetry.logs import configure_logging, request_id_var
configure_logging("engine", "INFO", sys.argv[1])
log = logging.getLogger("triptych_engine.core")
log.info("loaded in %d s: é", 3)
log.debug("left out")
request_id_var.set("r-1")
try:
    raise ValueError("no such block")
except ValueError:
    log.exception("step failed")
log.info("aborted", extra={"request_id": "r-2"})
"""


def lines_of(log_format: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, log_format], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_json_lines_have_every_part_as_a_field() -> None:
    loaded, failed, aborted = (json.loads(line) for line in lines_of("json"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", loaded.pop("time"))
    assert loaded == {"level": "INFO", "service": "engine", "logger": "triptych_engine.core", "message": "loaded in 3 s: é"}
    assert (failed["level"], failed["request_id"], failed["message"]) == ("ERROR", "r-1", "step failed")
    assert failed["exception"].endswith("ValueError: no such block")
    assert aborted["request_id"] == "r-2", "the record's own"


def test_text_lines_have_every_part_in_order() -> None:
    loaded, failed, *trace, aborted = lines_of("text")
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} INFO    engine   loaded in 3 s: é", loaded)
    assert failed.endswith("ERROR   engine   [r-1] step failed")
    assert trace[-1] == "ValueError: no such block"
    assert aborted.endswith("engine   [r-2] aborted")
