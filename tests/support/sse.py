"""A reader of server-sent events, as simple as a browser's."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx

from tests.support.clients import client


class Event(NamedTuple):
    """One event. `id` is None where it cannot be replayed."""

    name: str
    id: int | None
    data: Any


@contextlib.contextmanager
def listening(url: str, last: int | None = None, job: str = "", read_s: float = 30.0) -> Iterator[Iterator[Event]]:
    """The events of a stream, from after `last` on."""
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    params = {"job": job} if job else {}
    asking = client(timeout=httpx.Timeout(30.0, read=read_s))
    with asking, asking.stream("GET", f"{url}/api/v1/stream", params=params, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        yield _events(answer)


def _events(answer: httpx.Response) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            number = int(fields["id"]) if "id" in fields else None
            yield Event(fields.get("event", "message"), number, json.loads(fields["data"]))
            fields = {}
