"""A node's connection to its coordinator, which checks who answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from shoal.core.errors import InvalidPayload, NotAllowed, Refused, ShoalError
from shoal.runtime.http.client import Link, Response
from shoal.runtime.observability import tracing
from shoal.wire import codec

UNKNOWN_CODES = (NotAllowed.default_code, "node.removed")
"""Codes of the error that says: the credential is not known any more."""


class NodeLink(Link):
    """A node's connection. Only an answer with the protocol's header is the coordinator's word, so that a proxy's 404
    or 403 neither discards a report nor ends the node."""

    on_unknown_credential: Callable[[str, NotAllowed], ShoalError] | None = None
    """Asked what it means when the coordinator does not know the credential that was used."""

    on_term: Callable[[str, int, int], None] | None = None
    """Told of which coordinator an answer is: job, term, incarnation. It raises for one that must not be heard."""

    @contextmanager
    def exchange(self, method: str, path: str, **more: Any) -> Iterator[Response]:
        used = self.credential
        if traced := tracing.header():
            more["headers"] = {**(more.get("headers") or {}), tracing.HEADER: traced}
        try:
            with super().exchange(method, path, **more) as answer:
                self._check_term(answer.headers)
                yield answer
        except NotAllowed as error:
            if self.on_unknown_credential is None or not used or error.code not in UNKNOWN_CODES:
                raise
            raise self.on_unknown_credential(used, error) from error

    def _check_term(self, headers: Mapping[str, str]) -> None:
        """Check which coordinator answers. Raises what `on_term` raises."""
        if self.on_term is not None:
            with self.decoding():
                incarnations = parse_terms(headers.get("shoal-incarnation", ""))
            for one in incarnations:
                self.on_term(*one)

    def _problem(self, response: Any) -> ShoalError:
        """Return the fencing error before the problem itself: a fenced coordinator can refuse nothing."""
        try:
            self._check_term(response.headers)
        except ShoalError as error:
            return error
        return super()._problem(response)

    def frame(self, data: bytes) -> codec.Frame:
        """Decode a frame of the coordinator. Raises `Unreachable` for anything else."""
        with self.decoding():
            return codec.decode(data)

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Translate decoding errors to `Unreachable`, as a retry may help; keep protocol mismatches."""
        try:
            yield
        except (InvalidPayload, KeyError, TypeError, ValueError) as error:
            raise self.foreign_answer() from error
        except Refused as error:
            raise Refused(f"{self.address.url}: {error.message}", code=error.code, hint=error.hint) from error


def parse_terms(text: str) -> list[tuple[str, int, int]]:
    """Parse `Shoal-Term` and `Shoal-Incarnation`: `JOB=TERM.NUMBER`, separated by commas. Raises `ValueError`."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        job, _, numbers = part.partition("=")
        term, _, number = numbers.partition(".")
        if not (job and term.isdecimal() and number.isdecimal()):
            raise ValueError(f"{part[:80]!r} is not a lease")
        found.append((job, int(term), int(number)))
    return found
