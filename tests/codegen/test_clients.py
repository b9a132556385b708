"""Clients in other languages: generated from the contracts, compiled, and run to serialise one request as Python does.

They download generators and compilers: `make test-codegen`. A test is skipped where one cannot be had, and says which.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from support.codegen import Tools, debian_tools, public_files
from support.downloads import npm_packages

pytestmark = [pytest.mark.codegen, pytest.mark.timeout(900)]
PROGRAMS = Path(__file__).with_name("programs")
FILES = public_files()
OPTIONS = next(file.options for file in FILES.file if file.package == "triptych.v1")
STEMS = [Path(file.name).stem for file in FILES.file if file.package == "triptych.v1"]
REQUEST: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
    "options": {"sampling": {"temperature": 0.5, "max_tokens": 8}},
}


@pytest.fixture
def cache(pytestconfig: pytest.Config) -> Path:
    """Where downloads are kept from run to run."""
    return pytestconfig.cache.mkdir("codegen")  # type: ignore[union-attr]


def expected() -> str:
    """What each program prints: the service's name, and the request's bytes as hexadecimal digits."""
    pool = descriptor_pool.DescriptorPool()
    for file in FILES.file:
        pool.Add(file)
    request = message_factory.GetMessageClass(pool.FindMessageTypeByName("triptych.v1.ChatRequest"))()
    json_format.ParseDict(REQUEST, request)
    return f"triptych.v1.GenerationService {request.SerializeToString(deterministic=True).hex()}\n"


def place(program: str, directory: Path, **replaced: str) -> None:
    text = (PROGRAMS / program).read_text()
    for name, value in replaced.items():
        assert name in text
        text = text.replace(name, value)
    (directory / program).write_text(text)


def builtin(tools: Tools, language: str, out: str = "gen") -> dict[str, Any]:
    """A generator that is part of protoc."""
    return {"protoc_builtin": language, "protoc_path": str(tools.program("protoc")), "out": out}


def plugin(program: Path, out: str = "gen", **options: str) -> dict[str, Any]:
    return {"local": str(program), "out": out, "opt": [f"{name}={value}" for name, value in options.items()]}


def test_typescript(cache: Path, tmp_path: Path) -> None:
    tools = Tools(cache)
    modules = npm_packages(
        cache / "npm", tools.program("npm"), "@bufbuild/protobuf@^2", "@bufbuild/protoc-gen-es@^2", "typescript@>=5.9"
    )
    node = tools.program("node")
    (tmp_path / "node_modules").symlink_to(modules)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    generator = plugin(modules / ".bin" / "protoc-gen-es", target="ts", import_extension="js")
    generated = tools.generate(tmp_path, [generator])
    assert [path for path in generated if path.parts[0] == "gen"] == [
        Path(f"gen/triptych/v1/{stem}_pb.ts") for stem in sorted(STEMS)
    ]
    place("main.ts", tmp_path)
    options = ["--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom", "--outDir", "out", "--rootDir", "."]
    tools.run(modules / ".bin" / "tsc", *options, "main.ts", *[path for path in generated if path.suffix == ".ts"], cwd=tmp_path)
    (tmp_path / "out" / "package.json").write_text('{"type": "module"}')
    assert tools.run(node, "out/main.js", cwd=tmp_path) == expected()


def test_cpp(cache: Path, tmp_path: Path) -> None:
    tools = debian_tools(cache, "protobuf-compiler", "protobuf-compiler-grpc", "libprotobuf-dev", "libgrpc++-dev")
    generated = tools.generate(tmp_path, [builtin(tools, "cpp"), plugin(tools.program("grpc_cpp_plugin"))])
    sources = [path for path in generated if path.suffix == ".cc"]
    assert len(sources) == 2 * len(STEMS)
    for program in ("main.cpp", "client.cpp"):
        place(program, tmp_path)
    compiler = tools.program("g++")
    tools.run(compiler, "-std=c++17", "-O0", "-Igen", "-c", "main.cpp", "client.cpp", *sources, cwd=tmp_path)
    # What the messages need. gRPC's own libraries are another matter, and want dozens more.
    objects = ["main.o", *[f"{stem}.pb.o" for stem in STEMS]]
    tools.run(compiler, *objects, "-lprotobuf", "-o", "main", cwd=tmp_path)
    assert tools.run("./main", cwd=tmp_path) == expected()


def test_go(cache: Path, tmp_path: Path) -> None:
    tools = debian_tools(
        cache, "protobuf-compiler", "protoc-gen-go", "protoc-gen-go-grpc",
        "golang-go", "golang-google-grpc-dev", "golang-google-protobuf-dev",
    )  # fmt: skip
    generators = [plugin(tools.program(f"protoc-gen-{name}"), out="src") for name in ("go", "go-grpc")]
    package = OPTIONS.go_package.partition(";")[0]
    generated = tools.generate(tmp_path, generators)
    assert {Path("src", package, f"{stem}.pb.go") for stem in STEMS} <= set(generated)
    place("main.go", tmp_path, GO_PACKAGE=package)
    go = tools.program("go").resolve()
    environment = {
        "GOROOT": go.parents[1],
        # Debian's packages are sources below a GOPATH, and nothing is to be downloaded.
        "GOPATH": f"{tmp_path}:{tools.usr / 'share' / 'gocode'}:/usr/share/gocode",
        "GO111MODULE": "off",
        "GOCACHE": cache / "go",
    }
    tools.run(go, "vet", package, cwd=tmp_path, **environment)
    assert tools.run(go, "run", "main.go", cwd=tmp_path, **environment) == expected()


def test_java(cache: Path, tmp_path: Path) -> None:
    tools = debian_tools(cache, "protobuf-compiler", "protobuf-compiler-grpc-java-plugin", "libgrpc-java", "libprotobuf-java")
    javac, java = tools.program("javac"), tools.program("java")
    generated = tools.generate(tmp_path, [builtin(tools, "java"), plugin(tools.program("grpc_java_plugin"))])
    folder = Path("gen", *OPTIONS.java_package.split("."))
    assert {folder / "ChatRequest.java", folder / "GenerationServiceGrpc.java"} <= set(generated)
    place("Main.java", tmp_path, JAVA_PACKAGE=OPTIONS.java_package)
    jars = [jar for usr in (tools.usr, Path("/usr")) for jar in sorted((usr / "share" / "java").glob("*.jar"))]
    wanted = ("protobuf", "grpc-", "guava", "geronimo-annotation", "perfmark")
    classes = ":".join(str(jar) for jar in jars if jar.name.startswith(wanted))
    sources = [path for path in generated if path.suffix == ".java"]
    tools.run(javac, "-nowarn", "-d", "out", "-cp", classes, "Main.java", *sources, cwd=tmp_path)
    assert tools.run(java, "-cp", f"out:{classes}", "Main", cwd=tmp_path) == expected()
