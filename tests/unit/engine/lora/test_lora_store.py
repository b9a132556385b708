"""Which adapters are loaded: none in use is dropped, none is kept without a place, and what is replaced on disk is another one."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triptych.errors import InvalidRequestError, ModelNotFoundError, ServiceUnavailableError
from triptych_engine.runner.lora.adapter import LoraAdapter
from triptych_engine.runner.lora.directory import AdapterFiles, LoraDirectory
from triptych_engine.runner.lora.store import LoraStore


def put(folder: Path, name: str, content: str) -> None:
    (folder / name).mkdir(exist_ok=True)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        new = folder / name / f"{file}.new"
        new.write_text(content)
        os.replace(new, folder / name / file)


class Weights:
    """What a reading holds."""

    def __init__(self) -> None:
        self.values = [0.0]


class Reads:
    """Reads adapters whose digest is the content of their file. A content `bad` cannot be used."""

    def __init__(self) -> None:
        self.contents: list[str] = []

    def __call__(self, files: AdapterFiles) -> LoraAdapter:
        content = files.config.read_text()
        self.contents.append(content)
        if content == "bad":
            raise InvalidRequestError("it is bad", field="lora")
        if content == "strange":
            raise IndexError("a library's error")
        return LoraAdapter(files.name, content)


@pytest.fixture
def reads() -> Reads:
    return Reads()


def a_store(folder: Path, read: Callable[[AdapterFiles], LoraAdapter], max_loras: int = 2) -> LoraStore:
    return LoraStore(LoraDirectory(folder), read, max_loras)


def test_an_adapter_is_read_once(tmp_path: Path, reads: Reads):
    put(tmp_path, "a", "1")
    store = a_store(tmp_path, reads)
    first = store.load("a").result(10)
    assert store.load("a").result(10) is first
    assert store.loaded("1") is first
    assert reads.contents == ["1"]


def test_what_is_replaced_on_disk_is_another_adapter_and_those_who_have_the_old_one_keep_it(tmp_path: Path, reads: Reads):
    put(tmp_path, "a", "1")
    store = a_store(tmp_path, reads)
    old = store.load("a").result(10)
    put(tmp_path, "a", "2")
    assert store.load("a").result(10).digest == "2"
    assert store.loaded("1") is old
    del old
    gc.collect()
    assert store.loaded("1") is None


def test_one_that_is_bad_is_read_once_until_it_is_replaced(tmp_path: Path, reads: Reads):
    put(tmp_path, "a", "bad")
    store = a_store(tmp_path, reads)
    for _ in range(3):
        with pytest.raises(InvalidRequestError, match="it is bad"):
            store.load("a").result(10)
    put(tmp_path, "a", "good")
    assert store.load("a").result(10).digest == "good"
    assert reads.contents == ["bad", "good"]


def test_an_error_that_nobody_thought_of_is_a_refusal_once(tmp_path: Path, reads: Reads, caplog: pytest.LogCaptureFixture):
    put(tmp_path, "a", "strange")
    store = a_store(tmp_path, reads)
    for _ in range(3):
        with pytest.raises(InvalidRequestError, match=r"cannot be read \(IndexError\)"):
            store.load("a").result(10)
    assert reads.contents == ["strange"]
    assert "a library's error" in caplog.text


def test_what_is_refused_keeps_no_weights(tmp_path: Path):
    put(tmp_path, "a", "1")
    weights = weakref.WeakSet[Weights]()

    def read(files: AdapterFiles) -> LoraAdapter:
        one = Weights()
        weights.add(one)
        raise InvalidRequestError(f"it has another rank: {len(one.values)}", field="lora")

    store = a_store(tmp_path, read)
    with pytest.raises(InvalidRequestError):
        store.load("a").result(10)
    gc.collect()
    assert not weights


def test_equal_bytes_under_two_names_make_room_together(tmp_path: Path, reads: Reads):
    for name, content in (("v1", "1"), ("latest", "1"), ("other", "2"), ("third", "3")):
        put(tmp_path, name, content)
    store = a_store(tmp_path, reads)
    store.load("v1").result(10)
    store.load("latest").result(10)
    other = store.load("other").result(10)
    assert store.load("third").result(10).digest == "3"
    assert (store.loaded("1"), store.loaded("2")) == (None, other)


def test_one_that_is_removed_is_not_found(tmp_path: Path, reads: Reads):
    put(tmp_path, "a", "1")
    store = a_store(tmp_path, reads)
    store.load("a").result(10)
    (tmp_path / "a" / "adapter_config.json").unlink()
    with pytest.raises(ModelNotFoundError):
        store.load("a").result(10)


def test_those_in_use_keep_their_places(tmp_path: Path, reads: Reads):
    for name in "abc":
        put(tmp_path, name, name)
    store = a_store(tmp_path, reads)
    a, b = store.load("a").result(10), store.load("b").result(10)
    with pytest.raises(ServiceUnavailableError, match="2 adapters are in use"):
        store.load("c").result(10)
    assert store.load("a").result(10) is a
    assert store.load("b").result(10) is b
    del b
    assert store.load("c").result(10).digest == "c"
    assert (store.loaded("a") is a, store.loaded("b")) == (True, None)
    assert reads.contents == ["a", "b", "c"]


def test_requests_that_come_together_wait_for_one_reading(tmp_path: Path, reads: Reads):
    put(tmp_path, "a", "1")
    goes_on = threading.Event()

    def read(files: AdapterFiles) -> LoraAdapter:
        goes_on.wait(10)
        return reads(files)

    store = a_store(tmp_path, read)
    futures = [store.load("a") for _ in range(5)]
    goes_on.set()
    assert len({future.result(10) for future in futures}) == 1
    assert reads.contents == ["1"]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["use", "drop", "replace"])), max_size=30))
def test_any_uses_leave_at_most_so_many(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]):
    folder, reads, max_loras = tmp_path_factory.mktemp("loras"), Reads(), 2
    for name in "abcd":
        put(folder, name, f"{name}0")
    store, used, versions = a_store(folder, reads, max_loras), dict[str, list[LoraAdapter]](), dict.fromkeys("abcd", 0)
    for name, what in steps:
        if what == "replace":
            versions[name] += 1
            put(folder, name, f"{name}{versions[name]}")
        elif what == "drop":
            used.pop(name, None)
        else:
            in_use = {one.digest for some in used.values() for one in some}
            future: Future[LoraAdapter] = store.load(name)
            wanted = f"{name}{versions[name]}"
            if wanted in in_use or len(in_use) < max_loras:
                used.setdefault(name, []).append(future.result(10))
                assert used[name][-1].digest == wanted
            else:
                with pytest.raises(ServiceUnavailableError):
                    future.result(10)
            del future
        assert all(store.loaded(one.digest) is one for some in used.values() for one in some)
        assert len(store._alive) <= max_loras
    used.clear()
    store._kept.clear()
    gc.collect()
    assert not store._alive
