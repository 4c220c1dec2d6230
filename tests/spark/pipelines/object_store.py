"""An object store in memory that speaks as much of S3 as table libraries need, on loopback.

It is a process of its own: calls of the libraries keep the interpreter that makes them from running anything else.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import ProxyHandler, Request, build_opener
from xml.sax.saxutils import escape

BUCKET = "lake"
SECRET = "open-sesame"
_TIME = "2026-01-01T00:00:00.000Z"
_HTTP_TIME = "Thu, 01 Jan 2026 00:00:00 GMT"
_NO_HEADERS: Mapping[str, str] = {}


@dataclass
class _Contents:
    objects: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: _Contents

    def log_message(self, format: str, *given: object) -> None:  # noqa: A002 - the library's name
        pass

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").lstrip("/")

    @property
    def _query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query, True).items()}

    def _answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] = _NO_HEADERS, size: int = -1) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if size < 0 else size))
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = _joined_chunks(self.rfile)
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        # AWS's own chunks, with a checksum at the end.
        return _joined_chunks(io.BytesIO(body)) if "aws-chunked" in self.headers.get("Content-Encoding", "") else body

    def _is_allowed(self) -> bool:
        """Requests are signed: who does not know the key is not let in."""
        if "Credential=ada/" in self.headers.get("Authorization", ""):
            return True
        self._body()
        self._answer(403)
        return False

    def do_HEAD(self) -> None:
        found = self.store.objects.get(self._key)
        if found is None:
            self._answer(404)
        else:
            self._answer(200, headers=_headers(found), size=len(found))

    def do_GET(self) -> None:
        if not self._is_allowed():
            return
        if "list-type" in self._query:
            self._list()
            return
        found = self.store.objects.get(self._key)
        if found is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        headers = _headers(found)
        if span is None:
            self._answer(200, found, headers)
            return
        start = int(span[1]) if span[1] else len(found) - int(span[2])
        end = min(int(span[2]) if span[1] and span[2] else len(found) - 1, len(found) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(found)}"
        self._answer(206, found[start : end + 1], headers)

    def _list(self) -> None:
        prefix, delimiter = self._query.get("prefix", ""), self._query.get("delimiter")
        after = self._query.get("start-after", "")
        keys, prefixes = [], set()
        with self.store.lock:
            for key, data in sorted(self.store.objects.items()):
                if not key.startswith(prefix) or key <= after:
                    continue
                rest = key.removeprefix(prefix)
                if delimiter and delimiter in rest:
                    prefixes.add(prefix + rest.partition(delimiter)[0] + delimiter)
                else:
                    keys.append((key, data))
        listed = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_TIME}</LastModified><ETag>{escape(_etag(data))}</ETag>"
            f"<Size>{len(data)}</Size></Contents>"
            for key, data in keys
        )
        listed += "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in prefixes)
        text = f"<ListBucketResult><Name>{BUCKET}</Name><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>"
        self._answer(200, text.encode())

    def do_PUT(self) -> None:
        if not self._is_allowed():
            return
        body = self._body()
        with self.store.lock:
            if "uploadId" in self._query:
                self.store.uploads[self._query["uploadId"]][int(self._query["partNumber"])] = body
            elif self.headers.get("If-None-Match") == "*" and self._key in self.store.objects:
                self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            else:
                self.store.objects[self._key] = body
        self._answer(200, headers=_headers(body))

    def do_POST(self) -> None:
        if not self._is_allowed():
            return
        body = self._body()
        with self.store.lock:
            if "uploads" in self._query:
                upload = str(len(self.store.uploads))
                self.store.uploads[upload] = {}
                text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            elif "uploadId" in self._query:
                parts = self.store.uploads[self._query["uploadId"]]
                data = self.store.objects[self._key] = b"".join(parts[number] for number in sorted(parts))
                text = (
                    f"<CompleteMultipartUploadResult><ETag>{escape(_etag(data))}</ETag></CompleteMultipartUploadResult>"
                )
            else:
                keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
                for key in keys:
                    self.store.objects.pop(key, None)
                deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
                text = f"<DeleteResult>{deleted}</DeleteResult>"
        self._answer(200, text.encode())

    def do_DELETE(self) -> None:
        if self._is_allowed():
            with self.store.lock:
                self.store.objects.pop(self._key, None)
            self._answer(204)


def _joined_chunks(stream: io.BufferedIOBase) -> bytes:
    """What HTTP and AWS send in chunks, each after its size."""
    chunks = []
    while size := int(stream.readline().partition(b";")[0], 16):
        chunks.append(stream.read(size))
        stream.readline()
    while stream.readline().strip():
        pass
    return b"".join(chunks)


def _headers(data: bytes) -> dict[str, str]:
    return {"ETag": _etag(data), "Last-Modified": _HTTP_TIME}


def _etag(data: bytes) -> str:
    return f'"{md5(data, usedforsecurity=False).hexdigest()}"'


@dataclass(frozen=True)
class ObjectStore:
    """A store that runs, with one bucket."""

    url: str

    @property
    def options(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "ada",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def sizes(self) -> dict[str, int]:
        """The size of each object."""
        request = Request(f"{self.url}/{BUCKET}?list-type=2", headers={"Authorization": "Credential=ada/"})
        with build_opener(ProxyHandler({})).open(request) as answer:
            text = answer.read().decode()
        found = re.findall(r"<Key>(.*?)</Key>.*?<Size>(\d+)</Size>", text)
        return {key: int(size) for key, size in found}


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Run a store with an empty bucket."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield ObjectStore(process.stdout.readline().strip())
        finally:
            process.terminate()


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": _Contents()})) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)  # noqa: T201 - for the parent process
        server.serve_forever()
