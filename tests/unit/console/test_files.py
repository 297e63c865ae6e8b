"""The console's files over HTTP, and as the package has them."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

import aiohttp
import pytest

from jetcluster.console.files import WebFiles
from jetcluster.node.node import Node
from tests.unit.node.rig import running as node_of

TEXT = 'http: "127.0.0.1:-1"\nconsole: true\ncluster { name: demo, listen: "127.0.0.1:-1", trusted_network: true }\n'


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with node_of(tmp_path, TEXT) as found:
        yield found


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(auto_decompress=False, headers={"Accept-Encoding": "identity"}) as session:
        yield session


def url(node: Node, path: str) -> str:
    return f"http://127.0.0.1:{node.monitor_port}{path}"


async def get(http: aiohttp.ClientSession, node: Node, path: str, **options: Any) -> tuple[int, bytes, dict[str, str]]:
    async with http.get(url(node, path), allow_redirects=False, **options) as answer:
        return answer.status, await answer.read(), {name.lower(): value for name, value in answer.headers.items()}


async def test_the_page_and_its_headers(node: Node, http: aiohttp.ClientSession) -> None:
    status, body, headers = await get(http, node, "/ui/")
    assert status == 200 and b'<script type="module" src="app.js">' in body
    assert headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'" and policy["frame-ancestors"] == "'none'" == policy["base-uri"]
    assert "script-src" not in policy and "connect-src" not in policy, "scripts and connections as default-src"
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-cache" and "access-control-allow-origin" not in headers


async def test_the_path_without_a_slash_leads_there(node: Node, http: aiohttp.ClientSession) -> None:
    status, _, headers = await get(http, node, "/ui")
    assert (status, headers["location"]) == (308, "ui/"), "relative: a proxy may have another prefix"
    async with http.get(url(node, "/ui")) as answer:
        assert answer.status == 200 and answer.url.path == "/ui/"


async def test_a_browser_that_has_a_file_is_told_so_by_its_entity_tag(node: Node, http: aiohttp.ClientSession) -> None:
    _, body, headers = await get(http, node, "/ui/app.js")
    tag = headers["etag"]
    assert tag == f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    for known in (tag, f"W/{tag}", f'"old", {tag}'):
        status, rest, headers = await get(http, node, "/ui/app.js", headers={"If-None-Match": known})
        assert (status, rest, headers["etag"]) == (304, b"", tag), known
        assert headers["content-security-policy"]
    assert (await get(http, node, "/ui/app.js", headers={"If-None-Match": '"old"'}))[0] == 200


async def test_large_files_are_packed_for_those_who_can_unpack_them(node: Node, http: aiohttp.ClientSession) -> None:
    path = "/ui/vendor/nats.js"
    plain = (await get(http, node, path, headers={"Accept-Encoding": "identity"}))[1]
    status, packed, headers = await get(http, node, path, headers={"Accept-Encoding": "br, gzip"})
    assert (status, headers["content-encoding"], headers["vary"]) == (200, "gzip", "Accept-Encoding")
    assert gzip.decompress(packed) == plain and len(packed) < len(plain) / 3
    assert "content-encoding" not in (await get(http, node, "/ui/icon.svg"))[2]


@pytest.mark.parametrize(
    "path",
    [
        "/ui/nope.js", "/ui/vendor", "/ui/vendor/", "/ui/../files.py", "/ui/%2e%2e/files.py", "/ui/..%2ffiles.py",
        "/ui//etc/passwd", "/ui/%2fetc%2fpasswd", "/ui/app.js/", "/ui/app.js%00", "/ui/./app.js%3f", "/ui/APP.js",
        "/ui/web/app.js", "/uix",
    ],
)  # fmt: skip
async def test_nothing_else_is_served(node: Node, path: str) -> None:
    """As it is written: aiohttp's client would tidy the path."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.monitor_port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    assert re.match(rb"HTTP/1.1 (404|400) ", answer), answer[:200]
    assert b"root:" not in answer and b"WebFile" not in answer


async def test_what_the_page_knows_before_a_login(node: Node, http: aiohttp.ClientSession) -> None:
    status, body, headers = await get(http, node, "/ui/server.json")
    told = json.loads(body)
    assert status == 200 and headers["cache-control"] == "no-store"
    assert told.pop("version")
    assert told == {"server_name": "n1", "cluster": "demo", "auth_required": False, "anonymous": False}


async def test_a_login_is_asked_for_where_there_are_users(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    users = "accounts { A { users: [ {user: a, password: p} ] } }\n"
    async with node_of(tmp_path, TEXT + users) as node:
        told = json.loads((await get(http, node, "/ui/server.json"))[1])
        assert (told["auth_required"], told["anonymous"]) == (True, False)
    async with node_of(tmp_path, TEXT + users + "no_auth_user: a\n") as node:
        told = json.loads((await get(http, node, "/ui/server.json"))[1])
        assert (told["auth_required"], told["anonymous"]) == (True, True)


async def test_below_a_base_path(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with node_of(tmp_path, TEXT + "http_base_path: /nats\n") as node:
        assert (await get(http, node, "/nats/ui"))[2]["location"] == "ui/"
        assert (await get(http, node, "/nats/ui/"))[0] == 200
        assert (await get(http, node, "/nats/ui/app.js"))[0] == 200
        assert (await get(http, node, "/ui/"))[0] == 404


async def test_off_by_default(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with node_of(tmp_path, 'http: "127.0.0.1:-1"\n') as node:
        for path in ("/ui", "/ui/", "/ui/app.js", "/ui/server.json"):
            assert (await get(http, node, path))[:2] == (404, b"404 page not found\n")
        assert (await get(http, node, "/varz"))[0] == 200


async def test_its_requests_are_counted_by_one_name(node: Node, http: aiohttp.ClientSession) -> None:
    for path in ("/ui/", "/ui/app.js", "/ui/nope", "/ui/server.json"):
        await get(http, node, path)
    assert json.loads((await get(http, node, "/varz"))[1])["http_req_stats"]["/ui"] == 4


class Addresses(HTMLParser):
    """Files that a page loads, and scripts within it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert not [name for name in given if name.startswith("on")], "the policy lets no such script run"
        assert tag != "script" or given.get("src"), "the policy lets no such script run"
        self.found += [value for name, value in given.items() if name in ("src", "href") and tag != "a" and value]


def test_every_file_that_one_of_them_names_is_there() -> None:
    """The page, its scripts' imports, and nothing of another host."""
    files = WebFiles()
    index = files.get("")
    assert index is not None
    page = Addresses()
    page.feed(index.body.decode())
    waiting, seen = list(page.found), set[str]()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        found = files.get(path)
        assert found is not None, path
        if not path.startswith("vendor/") and found.type.startswith("text/javascript"):
            text = found.body.decode()
            named = re.findall(r'^(?:import|export)\b[^;"=(]*"([^"]+)";', text, re.MULTILINE)
            assert all(name.startswith(("./", "../")) for name in named), (path, named)
            waiting += [normpath(join(dirname(path), name)) for name in named]
            assert not re.search(r"\b(eval|new Function)\(|innerHTML|document\.write", text), path
    assert {"app.js", "style.css", "vendor/ui.js", "vendor/nats.js"} <= seen


def test_the_libraries_licences_are_among_them() -> None:
    found = WebFiles().get("vendor/LICENSES.txt")
    assert found is not None
    text = found.body.decode()
    assert all(name in text for name in ("preact", "htm", "uplot", "@nats-io/")), "each library of vendor/"
