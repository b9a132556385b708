"""The files of the playground: headers, caching, access, and the setting that switches it off."""

from __future__ import annotations

import hashlib
import posixpath
import re

import httpx
import pytest
from support.fakes.frontend import FakeFrontend
from support.fakes.gateway import gateway_client
from triptych_gateway.apis.operations.playground import assets

from tools.vendor_playground import LIBRARIES

FILES = sorted(assets().keys() - {"index.html"})
#: Our own modules.
OWN = [name for name in FILES if name.endswith(".js") and not name.startswith("vendor/")]


async def page_and_files(client: httpx.AsyncClient) -> list[httpx.Response]:
    return [await client.get(path) for path in ("/", *(f"/playground/{name}" for name in FILES))]


async def test_all_files_are_served_without_a_key_and_with_strict_headers() -> None:
    async with gateway_client(api_key="secret") as client:
        responses = await page_and_files(client)
    for response in responses:
        assert response.status_code == 200, response.url
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-cache"
        policy = dict(rule.split(" ", 1) for rule in response.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        # Only DOMPurify makes HTML of a text.
        assert (policy["require-trusted-types-for"], policy["trusted-types"]) == ("'script'", "dompurify")
    types = {response.headers["content-type"].partition(";")[0] for response in responses}
    assert types == {"text/html", "text/css", "text/javascript", "image/svg+xml", "text/plain"}


async def test_the_page_names_only_files_that_are_there() -> None:
    async with gateway_client() as client:
        page = (await client.get("/")).text
    assert "<style" not in page
    assert not re.search(r"<script(?! type=\"module\" src=)| style=| on\w+=", page)
    named = set(re.findall(r'(?:src|href)="playground/([^"]+)"', page))
    for name in OWN:
        found = re.findall(r'from "(\.[^"]+)"', assets()[name].content.decode())
        named |= {posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) for path in found}
    assert named | {"vendor/LICENSES.txt"} == set(FILES)


async def test_a_browser_that_has_a_file_gets_304() -> None:
    async with gateway_client() as client:
        for path in ("/", "/playground/main.js"):
            etag = (await client.get(path)).headers["etag"]
            for known in (etag, f"W/{etag}", f'"other", {etag}'):
                response = await client.get(path, headers={"if-none-match": known})
                assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", etag)
            assert (await client.get(path, headers={"if-none-match": '"other"'})).status_code == 200
            head = await client.head(path)
            assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("path", ["/playground/", "/playground/nothing.js", "/playground/../app.py", "/playground/%2e%2e/app.py"])
async def test_nothing_else_is_served(path: str) -> None:
    async with gateway_client() as client:
        response = await client.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


async def test_files_are_only_read() -> None:
    async with gateway_client() as client:
        statuses = [(await client.post(path)).status_code for path in ("/", "/playground/main.js")]
    assert statuses == [405, 405]


@pytest.mark.parametrize("api_key", [None, "secret"])
async def test_it_can_be_switched_off(api_key: str | None) -> None:
    async with gateway_client(playground=False, api_key=api_key) as client:
        statuses = {response.status_code for response in await page_and_files(client)}
    assert statuses == {404 if api_key is None else 401}


async def test_the_page_is_no_part_of_the_api() -> None:
    async with gateway_client() as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    assert not [path for path in paths if path == "/" or path.startswith("/playground")]


async def test_files_are_one_route_in_the_metrics() -> None:
    async with gateway_client(FakeFrontend()) as client:
        await page_and_files(client)
        metrics = (await client.get("/metrics")).text
    assert 'requests_total{route="/",status="200"} 1.0' in metrics
    assert "main.js" not in metrics


def test_no_module_builds_html_from_text() -> None:
    sources = {name: assets()[name].content.decode() for name in OWN}
    forbidden = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc")
    assert {name for name, source in sources.items() if forbidden.search(source)} == set()
    assert [name for name, source in sources.items() if "vendor/purify.js" in source] == ["conversation/html.js"]
    assert {name for name, source in sources.items() if source.count("\n") > 300} == set()


def test_libraries_are_those_of_their_packages() -> None:
    """Nobody changed them by hand: `python -m tools.vendor_playground` writes them with their licences."""
    licences = assets()["vendor/LICENSES.txt"].content.decode()
    for name, (package, version, _, digest) in LIBRARIES.items():
        assert hashlib.sha256(assets()[f"vendor/{name}"].content).hexdigest() == digest, name
        assert f"{package} {version}, " in licences
