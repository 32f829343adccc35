"""Answers to a browser: JSON and the dashboard's files compressed, the event stream as it comes."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from shoal_coordinator.api.static_files import StaticAssets
from shoal_coordinator.http.compression import BYTES_MIN, THREAD_BYTES, Compression, accepts

LONG = {"numbers": ["1234567890"] * 200}
LARGE = {"numbers": list(range(THREAD_BYTES))}


async def pieces() -> AsyncIterator[bytes]:
    for _ in range(3):
        yield b'{"long": "' + b"x" * BYTES_MIN + b'"}'


def app(folder: Path) -> Starlette:
    """Routes of every kind that the coordinator has."""
    answers: dict[str, Response] = {
        "/long": JSONResponse(LONG),
        "/large": JSONResponse(LARGE),
        "/short": JSONResponse({"a": 1}),
        "/problem": JSONResponse(LONG, 404, media_type="application/problem+json"),
        "/model": Response(b"0" * 5000, media_type="application/octet-stream"),
        "/token": JSONResponse(LONG),
    }

    async def answer(request: Request) -> Response:
        return answers[request.url.path]

    async def stream(request: Request) -> Response:
        return StreamingResponse(pieces(), media_type=request.query_params["as"])

    routes = [Route(path, answer, methods=["GET", "POST"]) for path in answers]
    inner = Starlette(routes=[*routes, Route("/stream", stream), Mount("/assets", StaticAssets(directory=folder))])
    inner.add_middleware(Compression)
    return inner


class Browser:
    """Asks as browsers do."""

    def __init__(self, folder: Path) -> None:
        self._transport = httpx.ASGITransport(app(folder))

    def get(self, path: str, method: str = "GET", **headers: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url="http://coordinator") as client:
                given = {name.replace("_", "-"): value for name, value in headers.items()}
                return await client.request(method, path, headers={"accept-encoding": "gzip, br", **given})

        return asyncio.run(ask())


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return Browser(tmp_path)


@pytest.mark.parametrize("path", ["/long", "/large", "/problem"])
def test_a_long_json_answer_is_compressed(browser: Browser, path: str) -> None:
    answer = browser.get(path)
    whole = browser.get(path, accept_encoding="identity")
    assert (answer.headers["content-encoding"], answer.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert "content-encoding" not in whole.headers
    assert answer.content == whole.content
    assert int(answer.headers["content-length"]) < int(whole.headers["content-length"]) / 2


@pytest.mark.parametrize("path", ["/short", "/model", "/stream?as=text/event-stream", "/stream?as=application/json"])
def test_what_is_short_or_no_json_or_comes_in_pieces_stays_as_it_is(browser: Browser, path: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == 200
    assert len(answer.content) > 1
    assert "content-encoding" not in answer.headers


def test_an_answer_that_gives_out_a_secret_is_not_compressed(browser: Browser) -> None:
    assert "content-encoding" not in browser.get("/token", "POST").headers


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("", False),
        ("identity", False),
        ("gzip;q=0, br", False),
        ("x-gzip", False),
    ],
)
def test_accept_encoding(header: str, expected: bool) -> None:
    assert accepts({"accept-encoding": header}, "gzip") is expected


def test_a_built_file_is_sent_in_the_form_that_the_browser_takes_and_kept(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page-1a2b.js").write_bytes(b"let plain;")
    (tmp_path / "page-1a2b.js.gz").write_bytes(gzip.compress(b"let packed;"))
    found = {
        asked: browser.get("/assets/page-1a2b.js", accept_encoding=asked)
        for asked in ("gzip, deflate", "identity", "br")
    }
    assert {asked: answer.text for asked, answer in found.items()} == {
        "gzip, deflate": "let packed;",
        "identity": "let plain;",
        "br": "let plain;",  # the build has made none
    }
    for answer in found.values():
        assert answer.headers["content-type"].startswith("text/javascript")
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["vary"] == "Accept-Encoding"
    known = found["identity"].headers["etag"]
    again = [
        browser.get("/assets/page-1a2b.js", accept_encoding=form, if_none_match=known) for form in ("identity", "gzip")
    ]
    assert [answer.status_code for answer in again] == [304, 200]
