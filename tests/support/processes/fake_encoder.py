"""A fake encoder as a process: `python fake_encoder.py CHECKPOINT`. Prints its address, then serves until it is killed.

Taking files of megabytes and hashing them holds up an event loop: who measures times has the encoder elsewhere.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from triptych_common.model.store import model_info

from support.fakes.encoder import FakeEncoder
from support.grpc_server import serving


async def main(path: Path) -> None:
    encoder = FakeEncoder(model_info(path, path.name), num_tokens=lambda item: 16)
    async with serving(encoder.register) as address:
        print(address, flush=True)
        while True:
            await asyncio.sleep(0.1)
            # They have the files in them.
            encoder.requests.clear()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
