"""The options by which generators of other languages name what they write."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from support.codegen import public_files

FILES = {file.name: file for file in public_files().file if file.package == "triptych.v1"}


def test_the_contracts_are_found() -> None:
    assert {"triptych/v1/common.proto", "triptych/v1/generation.proto"} <= set(FILES)


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_each_file_names_its_place_in_other_languages(file: FileDescriptorProto) -> None:
    options = file.options
    for name in ("go_package", "java_package", "csharp_namespace", "php_namespace", "ruby_package", "objc_class_prefix"):
        assert getattr(options, name), f"{file.name} has no option {name}"
    assert options.java_multiple_files
    package, _, name = options.go_package.partition(";")
    assert package.endswith("triptych/v1"), "Go packages are directories: the same as the proto path"
    assert name == "triptychv1", "'v1' alone would name every import in the world"


@pytest.mark.parametrize("name", ["go_package", "java_package", "csharp_namespace", "php_namespace", "ruby_package"])
def test_all_files_are_one_package(name: str) -> None:
    assert len({getattr(file.options, name) for file in FILES.values()}) == 1


def test_java_has_a_name_for_each_field() -> None:
    """A string field `x` has an accessor `getXBytes` in Java, which a field `x_bytes` would have too."""
    clashes = [
        f"{file.name}: {message.name}.{field.name}_bytes"
        for file in FILES.values()
        for message in file.message_type
        for field in message.field
        if field.type == FieldDescriptorProto.TYPE_STRING and f"{field.name}_bytes" in {other.name for other in message.field}
    ]
    assert not clashes
