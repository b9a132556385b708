"""The metrics port of a gRPC service, alone: `python metered_service.py METRICS_PORT [--scrape-timeout-s S]`."""

from __future__ import annotations

import argparse
import asyncio
from types import SimpleNamespace
from typing import Any

from triptych_common.rpc import metrics_server
from triptych_common.rpc.interceptors import CallCounts
from triptych_common.rpc.metrics_server import MetricsServer
from triptych_common.telemetry.tracing import OFF


async def main(port: int) -> None:
    service: Any = SimpleNamespace(model_info=lambda: None, state=0, num_live_requests=0)
    MetricsServer("engine", service, None, CallCounts(), OFF).start("127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--scrape-timeout-s", type=float, default=10.0)
    options = parser.parse_args()
    metrics_server._Handler.timeout = options.scrape_timeout_s
    asyncio.run(main(options.port))
