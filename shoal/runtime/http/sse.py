"""Server-sent events (WHATWG HTML, section 9.2), read line by line; a broken stream is taken up where it ended."""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import InvalidPayload, Unreachable
from shoal.runtime.http.client import Link, Response
from shoal.runtime.http.retry import Backoff, attempts
from shoal.validation import strict_json

SILENCE_S = 45.0
"""Seconds without a byte after which a stream is taken for dead; a coordinator says something every 15 s."""
LINE_CHARACTERS_MAX = 4 * 1024 * 1024

_LINE_END = re.compile(r"\r\n|\n|\r(?!$)")  # a carriage return at the end of a piece may be half of a line's end


@dataclass(frozen=True)
class ServerEvent:
    """One event: its name, its data (JSON), and its id, empty when it can't be replayed."""

    name: str
    data: Any
    id: str = ""


def events(
    link: Link, path: str, *, params: Mapping[str, str] | None = None, last_id: str = "", backoff: Backoff | None = None
) -> Iterator[ServerEvent]:
    """Yield events, and reconnect after a broken connection.

    Raises what `Link` raises when a connection is refused for good, or is not had within the back-off's `give_up_s`.
    """
    pauses, newest, failures = backoff or Backoff(), last_id, 0
    while True:
        stack = ExitStack()
        answer = _connected(stack, link, path, params, newest, pauses)
        failures += 1
        try:
            with stack:
                for found in parse(answer.pieces()):
                    newest, failures = found.id or newest, 0
                    yield found
            error = Unreachable("the stream has ended")
        except Unreachable as broken:
            error = broken
        time.sleep(pauses.pause_s(failures + 1, error))


def _connected(
    stack: ExitStack, link: Link, path: str, params: Mapping[str, str] | None, last_id: str, backoff: Backoff
) -> Response:
    """Open a stream; retry until it is open."""
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
    for attempt in attempts(backoff):
        with attempt:
            return stack.enter_context(link.exchange("GET", path, params=params, headers=headers, read_s=SILENCE_S))
    raise AssertionError("stamina raises the last error or lets a try succeed")


def parse(pieces: Iterable[bytes]) -> Iterator[ServerEvent]:
    """Yield the events in a stream's bytes. Raises `InvalidPayload` for an endless line."""
    name, id_, data = "message", "", list[str]()
    for line in _lines(pieces):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            name = value
        elif field == "id":
            id_ = value
        elif not line:
            if data:
                yield ServerEvent(name, _values("\n".join(data)), id_)
            name, id_, data = "message", "", []


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    for piece in pieces:
        *whole, rest = _LINE_END.split(rest + decoder.decode(piece))
        yield from whole
        if len(rest) > LINE_CHARACTERS_MAX:
            raise InvalidPayload(f"a line of more than {LINE_CHARACTERS_MAX} characters", code="sse.too-large")


def _values(text: str) -> Any:
    try:
        return strict_json.loads(text.encode())
    except (ValueError, RecursionError):
        raise InvalidPayload(f"an event with data that are not JSON: {text[:60]!r}", code="sse.invalid") from None
