"""Files are cut out of bodies, and only where they are files."""

from __future__ import annotations

import base64
import json
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triptych_gateway import file_parts
from triptych_gateway.file_parts import OLLAMA_MARKS, FileParts

CONTENT = bytes(range(256)) * 40


def url(content: bytes = CONTENT, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def body_of(*parts: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": parts}], **fields}).encode()


def image(address: str, **fields: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {**fields, "url": address}}


def addresses(parts: FileParts) -> list[str]:
    """The addresses of the media parts, as the JSON has them now."""
    found = []
    for part in json.loads(parts.rest)["messages"][0]["content"]:
        found += [value["url"] for name, value in part.items() if name.endswith("_url")]
    return found


@given(st.integers(3000, 20_000), st.integers(3100, 9000), st.integers(0, 255), st.booleans())
def test_files_come_back_as_they_were(first: int, second: int, start: int, has_detail: bool) -> None:
    files = [bytes((start + index) % 256 for index in range(length)) for length in (first, second)]
    fields = {"detail": "auto"} if has_detail else {}
    body = body_of(image(url(files[0]), **fields), {"type": "text", "text": "?"}, image(url(files[1])))
    parts = FileParts(body)
    # A payload is four thirds of its file; smaller ones than 4096 characters are not worth it.
    is_worth_it = [(length + 2) // 3 * 4 >= 4096 for length in (first, second)]
    assert [parts.take(address) for address in addresses(parts)] == [
        file if worth else None for file, worth in zip(files, is_worth_it, strict=True)
    ]
    assert len(parts) == 0


def test_files_of_any_length_are_decoded() -> None:
    for num_bytes in range(3072, 3080):
        parts = FileParts(body_of(image(url(CONTENT[:num_bytes]))))
        (address,) = addresses(parts)
        assert parts.take(address) == CONTENT[:num_bytes]


@pytest.mark.parametrize(
    "body",
    [
        body_of({"type": "text", "text": f'{{"image_url": {{"url": "{url()}'}),
        body_of({"type": "text", "text": url()}),
        body_of(image("https://x/a.png")),
        body_of(image(url(b"small"))),
        body_of(image(url()), metadata=None).replace(b"+", b"%2B"),
        body_of(image(url())).replace(b"/", b"\\/"),
        body_of({"type": "input_audio", "input_audio": {"data": url()}}),
        b'{"messages": "' + url().encode(),
        b"",
    ],
    ids=["a text that quotes a part", "a text", "an address", "small", "percent", "escapes", "another field", "cut", "empty"],
)
def test_what_is_no_file_stays_as_it_is(body: bytes) -> None:
    parts = FileParts(body)
    assert parts.rest == body
    assert len(parts) == 0


def test_a_client_cannot_name_a_file_itself() -> None:
    parts = FileParts(body_of(image(url()), image("data:image/png;base64,~0123456789abcdef:0")))
    own, forged = addresses(parts)
    assert parts.take(forged) is None
    assert parts.take(own) == CONTENT
    assert parts.take(own) is None


@pytest.mark.parametrize("broken", ["=" * 5000, "A" * 5001, "AAAA" * 2000 + "=" + "AAAA" * 2000, "?" * 5000])
def test_what_is_not_base64_is_told(broken: str) -> None:
    parts = FileParts(body_of(image(f"data:image/png;base64,{broken}")))
    with pytest.raises(ValueError, match="not base64"):
        parts.take(addresses(parts)[0])


def test_a_long_media_type_hides_no_file() -> None:
    parts = FileParts(body_of(image(url(kind=f"image/png;name={'x' * 300}"))))
    (address,) = addresses(parts)
    assert parts.take(address) == CONTENT


def source(data: str, **before: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", **before, "data": data}}


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_sources_of_anthropic_are_cut_out(separators: tuple[str, str]) -> None:
    data = base64.b64encode(CONTENT).decode()
    content = [
        source(data, media_type="image/png"),
        image(url()),
        source("QUJD"),
        {"type": "text", "text": f'"source":{{"data":"{data}'},
    ]
    parts = FileParts(json.dumps({"messages": [{"content": content}]}, separators=separators).encode())
    first, second, third, text = json.loads(parts.rest)["messages"][0]["content"]
    assert len(parts) == 2
    assert parts.take(second["image_url"]["url"]) == CONTENT
    assert parts.take(first["source"]["data"]) == CONTENT
    assert parts.take(third["source"]["data"]) is None
    assert data in text["text"]


@given(st.lists(st.integers(1, 9000), max_size=6), st.sampled_from([(",", ":"), (", ", ": "), (" ,\n ", " :\n ")]), st.booleans())
def test_images_of_ollama_are_cut_out(lengths: list[int], separators: tuple[str, str], is_first: bool) -> None:
    files = [bytes([number]) * length for number, length in enumerate(lengths)]
    message: dict[str, Any] = {"role": "user", "content": '{"images": ["' + "A" * 5000, "more": "images"}
    images = {"images": [base64.b64encode(file).decode() for file in files]}
    body = json.dumps({"messages": [images | message if is_first else message | images]}, separators=separators).encode()
    parts = FileParts(body, marks=OLLAMA_MARKS)
    assert parts.restored(bytes(parts.rest)) == body
    (read,) = json.loads(parts.rest)["messages"]
    assert read["content"] == message["content"]
    # A small picture ends the search: what follows it is parsed as JSON.
    taken = [parts.take(image) for image in read["images"]]
    num_large = next((place for place, length in enumerate(lengths) if (length + 2) // 3 * 4 < 4096), len(lengths))
    assert taken == [*files[:num_large], *([None] * (len(files) - num_large))]
    assert read["images"][num_large:] == images["images"][num_large:]
    assert len(parts) == 0


def test_images_are_no_mark_of_other_apis() -> None:
    body = json.dumps({"images": ["A" * 5000]}).encode()
    assert FileParts(body).rest == body


def test_a_long_list_of_texts_is_not_searched_for_images() -> None:
    body = b'{"images":[' + b'"a",' * 1_000_000 + b'"b"]}'
    start_s = time.process_time()
    assert FileParts(body, marks=OLLAMA_MARKS).rest == body
    assert time.process_time() - start_s < 0.5


@pytest.mark.parametrize("name", ["data", "x"])
def test_other_data_stays(name: str) -> None:
    body = json.dumps({"metadata": {"data": "A" * 5000}, "x": {"source": {"y": {name: "A" * 5000}}}, "z": "data"}).encode()
    parts = FileParts(body)
    assert (len(parts), parts.rest) == (0, body)


def test_the_url_itself_may_be_the_field_and_payloads_can_be_put_back() -> None:
    body = json.dumps({"input": [{"image_url": url()}, {"video_url": url(CONTENT[1:], "video/mp4")}]}).encode()
    parts = FileParts(body)
    assert len(parts) == 2
    rest = bytes(parts.rest)
    assert len(rest) < 300
    assert parts.restored(rest) == body
    assert parts.take(json.loads(rest)["input"][0]["image_url"]) == CONTENT
    assert json.loads(parts.restored(rest))["input"][1]["video_url"] == url(CONTENT[1:], "video/mp4"), (
        "the other one is still there"
    )


def test_many_payloads_are_put_back_in_one_pass() -> None:
    address = "data:image/png;base64," + "A" * 4096
    body = json.dumps({"input": [{"image_url": address}] * 4000}).encode()
    parts = FileParts(body)
    assert len(parts) == 4000
    start_s = time.process_time()
    assert parts.restored(bytes(parts.rest)) == body
    # One pass per payload would copy 30 GB.
    assert time.process_time() - start_s < 1


@pytest.mark.parametrize(("num_bytes", "is_apart"), [(1000, False), (100_000, True)])
async def test_work_on_a_large_body_leaves_the_event_loop(num_bytes: int, is_apart: bool) -> None:
    for parts in (FileParts(b" " * num_bytes), FileParts(b"", num_bytes)):
        assert (await parts.run(threading.get_ident) != threading.get_ident()) == is_apart


@pytest.mark.parametrize("part_bytes", [1, 5, 6, 7, 1000])
def test_marks_are_counted_wherever_a_part_ends(part_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_parts, "_PART_BYTES", part_bytes)
    monkeypatch.setattr(file_parts, "MAX_MARKS", 3)
    FileParts(b'{"data":1,"data":2,"a":";base64,"}')
    with pytest.raises(ValueError, match="more than 3 times"):
        FileParts(b'{"data":1,"data":2,"a":";base64,","data":3}')
