"""Google Cloud Storage's XML API, as far as obstore uses it, over a dictionary in memory: `python -m
tests.spark.google_store PORT BUCKET`.

Ours, as the emulators on PyPI and among Go's modules (gcp-storage-emulator 2026.7.19, fake-gcs-server 1.56.1) take no
plain PUT with `x-goog-if-generation-match`. Made after Google's reference of the XML API: what it proves is that an
archive does well with a store of these rules, not that Google's has them.
"""

from __future__ import annotations

import itertools
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 7
"""Objects of one answer of a listing: less than an archive of a test has."""
_TIME = "2026-11-30T06:00:00.000Z"


class _Object(NamedTuple):
    generation: int
    data: bytes


class GoogleStore(ThreadingHTTPServer):
    def __init__(self, port: int, bucket: str) -> None:
        super().__init__(("127.0.0.1", port), _Request)
        self.bucket = bucket
        self.objects: dict[str, _Object] = {}
        self.generations = itertools.count(1)
        self.lock = threading.Lock()


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: GoogleStore

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        bucket, name = self._place()
        wanted = self.headers.get("x-goog-if-generation-match")
        with self.server.lock:
            there = self.server.objects.get(name)
            if bucket != self.server.bucket:
                self._answer(404)
            elif wanted is not None and int(wanted) != (there.generation if there else 0):
                self._answer(412)
            else:
                self.server.objects[name] = made = _Object(next(self.server.generations), data)
                self._answer(200, made)

    def do_GET(self) -> None:
        bucket, name = self._place()
        with self.server.lock:
            found = self.server.objects.get(name)
        if bucket != self.server.bucket:
            self._answer(404)
        elif not name:
            self._list()
        elif found is None:
            self._answer(404)
        elif asked := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            first, last = int(asked[1]), min(int(asked[2]), len(found.data) - 1)
            part = found.data[first : last + 1]
            self._answer(206, found, part, [("Content-Range", f"bytes {first}-{last}/{len(found.data)}")])
        else:
            self._answer(200, found, found.data)

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        with self.server.lock:
            gone = self.server.objects.pop(self._place()[1], None)
        self._answer(204 if gone else 404)

    def _place(self) -> tuple[str, str]:
        bucket, _, name = urlsplit(self.path).path.lstrip("/").partition("/")
        return bucket, unquote(name)

    def _list(self) -> None:
        asked = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        prefix, after = asked.get("prefix", ""), asked.get("continuation-token", "")
        with self.server.lock:
            found = sorted(one for one in self.server.objects.items() if one[0].startswith(prefix) and one[0] > after)
        text = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>{_TIME}</LastModified>"
            f'<ETag>"{one.generation}"</ETag><Size>{len(one.data)}</Size></Contents>'
            for name, one in found[:PAGE]
        )
        if len(found) > PAGE:
            text += f"<NextContinuationToken>{escape(found[PAGE - 1][0])}</NextContinuationToken>"
        self._answer(200, data=f"<ListBucketResult>{text}</ListBucketResult>".encode())

    def _answer(
        self, status: int, of: _Object | None = None, data: bytes = b"", more: list[tuple[str, str]] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if of is not None:
            self.send_header("ETag", f'"{of.generation}"')
            self.send_header("x-goog-generation", str(of.generation))
            self.send_header("Last-Modified", "Mon, 30 Nov 2026 06:00:00 GMT")
        for name, value in more or ():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


if __name__ == "__main__":
    GoogleStore(int(sys.argv[1]), sys.argv[2]).serve_forever()
