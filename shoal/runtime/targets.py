"""Bodies that go past the coordinator, by addresses that it gives: followed as they are, never made here.

What crosses is counted here, since the coordinator does not see it, and told to it: each transfer under a number of its
own, so that telling twice is the same as once.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from shoal.core.message import Ref
from shoal.runtime.http import Link, Traffic


@dataclass(frozen=True)
class Target:
    """Where a body is to be got or put, as the coordinator says; `version`: what its bytes are booked under."""

    method: str
    url: str
    headers: Mapping[str, str]
    version: int

    @staticmethod
    def of(found: Mapping[str, Any]) -> Target:
        """Of the coordinator's answer. Raises `KeyError`, `TypeError`, `ValueError` for what is none."""
        headers = {str(name): str(value) for name, value in found["headers"].items()}
        return Target(str(found["method"]), str(found["url"]), headers, int(found["version"]))

    @property
    def elsewhere(self) -> bool:
        """Whether that is another server's address; else it is a path of the coordinator's."""
        return "://" in self.url

    @property
    def origin(self) -> str:
        """The server of the address."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def path(self) -> str:
        """What is asked of that server."""
        return self.url.removeprefix(self.origin)


def told(link: Link, target: Target, ref: Ref) -> dict[str, Any]:
    """What went over a link that served one transfer, as the coordinator is told it."""
    traffic: Traffic = link.traffic
    return {
        "id": secrets.token_hex(8),
        "digest": ref.digest,
        "direction": "up" if target.method == "PUT" else "down",
        "version": target.version,
        "requests": traffic.requests,
        "up_head": traffic.up_head_bytes,
        "up_body": traffic.up_bytes,
        "down_head": traffic.down_head_bytes,
        "down_body": traffic.down_bytes,
    }
