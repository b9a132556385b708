"""Sends many requests with a large image at once: `python upload_load.py HOST PORT MODEL NUM_STREAMS FILE_BYTES`.

It is a separate process, so that the load does not disturb the measuring process. Writes one line of JSON: outcome of the requests
-> count.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import sys
from collections import Counter

#: Written at once; what does not go waits in the gateway's socket.
_PIECE = 256 << 10


def bitmap(num_bytes: int) -> bytes:
    """An image of about `num_bytes` bytes that is fast to decode, because BMP is not compressed."""
    side = int((num_bytes / 3) ** 0.5) // 4 * 4
    size = 54 + 3 * side * side
    header = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, size - 54, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", size, 0, 0, 54) + header + b"\x80" * (size - 54)


async def one(host: str, port: int, head: bytes, payload: memoryview, tail: bytes) -> str:
    """Send one request. Returns its outcome."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        length = len(head) + len(payload) + len(tail)
        start = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        writer.write(start.encode() + head)
        for offset in range(0, len(payload), _PIECE):
            writer.write(payload[offset : offset + _PIECE])
            await writer.drain()
        writer.write(tail)
        status = (await reader.readline()).split()[1].decode()
        rest = await reader.read()
        if status != "200":
            return status
        return "error event" if b'"error"' in rest else "whole" if b"[DONE]" in rest else "cut"
    finally:
        writer.close()


async def main(host: str, port: int, model: str, num_streams: int, num_bytes: int) -> None:
    payload = memoryview(base64.b64encode(bitmap(num_bytes)))
    content = [{"type": "image_url", "image_url": {"url": "@"}}, {"type": "text", "text": "?"}]
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": content}]}
    head, tail = json.dumps(body).encode().split(b"@")
    head += b"data:image/bmp;base64,"
    ends = await asyncio.gather(*(one(host, port, head, payload, tail) for _ in range(num_streams)), return_exceptions=True)
    print(json.dumps(Counter(end if isinstance(end, str) else type(end).__name__ for end in ends)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
