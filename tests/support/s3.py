"""A store that speaks S3, for tests: moto behind a door that holds callers to what they were allowed, and has moods."""

from __future__ import annotations

import base64
import hashlib
import io
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs

import httpx
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

KEY_ID, SECRET = "tests", "not a secret"

_ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        pass


class S3:
    """`mood`: "" (well), or an error code with which everything is answered. `late_s`: its clock is so far ahead."""

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self.mood, self.status, self.late_s = "", 503, 0.0
        self.touchy: set[str] = set()
        self.deny_signed = False
        self.seen: list[tuple[str, str, bool]] = []
        """(method, path, whether it was signed for a node) of every request."""
        self.sent: list[tuple[str, int]] = []
        """(path, bytes) of every body that the coordinator has sent."""
        self._lock = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="s3", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def feel(self, mood: str, status: int = 503, methods: Iterable[str] = ()) -> None:
        """From now on everything, or requests of these methods, are answered with this error."""
        self.mood, self.status, self.touchy = mood, status, set(methods)

    def bucket(self, name: str) -> str:
        """Make a bucket; the address of a store in it, under a prefix."""
        httpx.put(f"{self.endpoint}/{name}", timeout=60).raise_for_status()
        return f"s3://{name}/some/where?endpoint={self.endpoint}"

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        query = {name: found[0] for name, found in parse_qs(environ.get("QUERY_STRING", "")).items()}
        signed = "X-Amz-Signature" in query
        if "CONTENT_LENGTH" in environ and environ["REQUEST_METHOD"] == "PUT":
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        moody = self.mood and (not self.touchy or environ["REQUEST_METHOD"] in self.touchy)
        with self._lock:
            length = int(environ.get("CONTENT_LENGTH") or 0)
            if environ["REQUEST_METHOD"] == "PUT" and not signed and length:
                self.sent.append((environ["PATH_INFO"], length))
            self.seen.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], signed))
        fault, status = (self.mood, self.status) if moody else self._fault(environ, query) if signed else ("", 0)
        if fault:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            data = _ERROR.format(code=fault).encode()
            start(f"{status} {fault}", [("Content-Type", "application/xml"), ("Content-Length", str(len(data)))])
            return [data]
        return self._moto(environ, start)  # type: ignore[no-any-return]

    def _fault(self, environ: dict[str, Any], query: dict[str, str]) -> tuple[str, int]:
        """A real store's answer to a misused signed address."""
        if self.deny_signed:
            return "AccessDenied", 403
        begun = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        now = datetime.now(UTC) + timedelta(seconds=self.late_s)
        if now > begun + timedelta(seconds=int(query["X-Amz-Expires"])):
            return "AccessDenied", 403
        if environ["REQUEST_METHOD"] != "PUT":
            return "", 0
        names = query["X-Amz-SignedHeaders"].split(";")
        if not {"content-length", "x-amz-checksum-sha256"} <= set(names):
            return "SignatureDoesNotMatch", 403
        data = environ["wsgi.input"].getvalue()
        if base64.b64encode(hashlib.sha256(data).digest()).decode() != environ["HTTP_X_AMZ_CHECKSUM_SHA256"]:
            return "BadDigest", 400
        return "", 0
