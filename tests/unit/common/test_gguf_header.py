"""Headers of GGUF files: what they say, and files that are cut or damaged."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from triptych.errors import StartupError
from triptych_common.model.gguf import read_gguf_header
from triptych_common.model.weights import check_weight_files, gguf_file, weights_fingerprint


def a_file(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_float32("llama.rope.freq_base", 1e5)
    writer.add_string("tokenizer.chat_template", "{{ messages }}\n")
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_array("short", [1, 2, 3])
    writer.add_array("words", [f"word {i}" for i in range(100)])
    writer.add_array("numbers", list(range(1000)))
    writer.add_tensor("a.weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("b.weight", np.zeros((5, 2 * 18), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_and_tensors(tmp_path: Path):
    file = a_file(tmp_path / "a.gguf")
    header = read_gguf_header(file)
    assert header.architecture == "llama"
    assert header.metadata["llama.block_count"] == 3
    assert header.metadata["llama.rope.freq_base"] == 1e5
    assert header.metadata["tokenizer.chat_template"] == "{{ messages }}\n"
    assert header.metadata["tokenizer.ggml.add_bos_token"] is True
    assert header.metadata["short"] == [1, 2, 3]
    assert not {"words", "numbers"} & set(header.metadata), "long arrays are left out"
    assert read_gguf_header(file, max_array=1000).metadata["words"][99] == "word 99"
    first, second = header.tensors.values()
    assert (first.name, first.type, first.shape) == ("a.weight", "F32", (2, 3))
    assert (second.name, second.type, second.shape, second.num_bytes) == ("b.weight", "Q4_0", (5, 64), 180)
    content = file.read_bytes()[first.offset : first.offset + first.num_bytes]
    assert np.array_equal(np.frombuffer(content, np.float32), np.arange(6))


def test_a_file_that_is_cut_anywhere_is_refused_by_name(tmp_path: Path):
    content = a_file(tmp_path / "a.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    whole = max(tensor.offset + tensor.num_bytes for tensor in read_gguf_header(tmp_path / "a.gguf").tensors.values())
    for size in [*range(400), *range(400, whole, 97), whole - 1]:
        cut.write_bytes(content[:size])
        with pytest.raises(StartupError, match=r"cut\.gguf is damaged"):
            read_gguf_header(cut)


def test_damaged_bytes_give_an_error_or_another_header_and_nothing_else(tmp_path: Path):
    content, chance = bytearray(a_file(tmp_path / "a.gguf").read_bytes()), random.Random(0)
    file = tmp_path / "b.gguf"
    refused = 0
    for _ in range(1500):
        damaged = bytearray(content)
        for _ in range(chance.choice([1, 1, 4])):
            damaged[chance.randrange(len(damaged))] = chance.choice([0, 1, 0x7F, 0xFF, chance.randrange(256)])
        file.write_bytes(damaged)
        try:
            read_gguf_header(file)
        except StartupError:
            refused += 1
    assert refused > 50


def test_what_is_not_gguf(tmp_path: Path):
    (tmp_path / "a.gguf").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(StartupError, match="does not begin like a GGUF file"):
        read_gguf_header(tmp_path / "a.gguf")
    with pytest.raises(StartupError, match="cannot read"):
        read_gguf_header(tmp_path / "none.gguf")


def test_a_directory_has_safetensors_or_one_gguf_file(tmp_path: Path):
    a_file(tmp_path / "a.gguf")
    assert gguf_file(tmp_path) == tmp_path / "a.gguf"
    check_weight_files(tmp_path)
    a_file(tmp_path / "b.gguf")
    with pytest.raises(StartupError, match=r"2 GGUF files, e\.g\. a\.gguf"):
        check_weight_files(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert gguf_file(tmp_path) is None


def test_its_fingerprint_depends_on_its_content_and_not_on_its_name(tmp_path: Path):
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    a_file(tmp_path / "one" / "a.gguf")
    a_file(tmp_path / "two" / "b.gguf")
    content = bytearray((tmp_path / "one" / "a.gguf").read_bytes())
    content[read_gguf_header(tmp_path / "one" / "a.gguf").tensors["b.weight"].offset + 3] ^= 1
    (tmp_path / "three" / "a.gguf").write_bytes(content)
    one, two, three = (weights_fingerprint(tmp_path / name) for name in ("one", "two", "three"))
    assert one == two != three


def test_arrays_of_arrays_are_refused(tmp_path: Path):
    nested = struct.pack("<IQ", 9, 1) * 3000 + struct.pack("<IQ", 4, 0)
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9) + nested
    (tmp_path / "a.gguf").write_bytes(header)
    with pytest.raises(StartupError, match="array of arrays"):
        read_gguf_header(tmp_path / "a.gguf")
