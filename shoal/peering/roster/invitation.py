"""An invitation as one string, to be pasted, and a newcomer's request with it.

shoal-join-<base64url of deflated JSON: addresses of peers, the charter's SHA-256, the signed invitation>

The string holds no private key. Its charter digest is the newcomer's root of trust: every document that it gets over
the network must belong to that charter. Any holder of the string can use it, so keep it confidential.

The newcomer sends to `POST /p2p/JOB/join`, signed with a key that it has made itself:

{"invitation": "…", "node": "name", "public_key": "ed25519:…", "urls": ["http://10.0.0.9:9001"]}
"""

from __future__ import annotations

import binascii
import json
import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import InvalidPayload, ShoalError, message_of
from shoal.peering.roster.join_certificate import URL_CHARS, URLS_MAX
from shoal.runtime.http.coordinator_url import parse
from shoal.trust.documents import Invitation
from shoal.trust.keys import PUBLIC
from shoal.validation import strict_json
from shoal.validation.message_checks import NAME, is_digest

PREFIX = "shoal-join-"
TEXT_CHARS_MAX, VALUES_BYTES_MAX = 4096, 16 * 1024
JOIN_BYTES_MAX = Invitation.BYTES_MAX + 4096


@dataclass(frozen=True)
class InvitationToken:
    """Content of the string. `urls`: peers to ask, in this order; `charter`: its SHA-256."""

    job: str
    urls: tuple[str, ...]
    charter: str
    invitation: bytes

    def text(self) -> str:
        values = [self.job, list(self.urls), self.charter, self.invitation.decode("ascii")]
        packed = zlib.compress(json.dumps(values, separators=(",", ":")).encode(), 9)
        return PREFIX + urlsafe_b64encode(packed).decode().rstrip("=")


def read_token(text: str) -> InvitationToken:
    """Return what a pasted string holds; the invitation is not verified. Raises `ShoalError`."""
    shown = "".join(text.split())
    hint = "copy the whole string, from shoal-join- to its end"
    wrong = ShoalError("this is not an invitation", code="usage.invitation", hint=hint)
    if not shown.startswith(PREFIX) or len(shown) > TEXT_CHARS_MAX:
        raise wrong
    try:
        packed = shown.removeprefix(PREFIX)
        inflate = zlib.decompressobj()
        data = inflate.decompress(urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), VALUES_BYTES_MAX)
        if not inflate.eof:
            raise wrong
        job, urls, charter, invitation = strict_json.loads(data)
        token = InvitationToken(job, _addresses(urls), charter, invitation.encode("ascii"))
    except (ValueError, TypeError, AttributeError, binascii.Error, zlib.error, RecursionError, ShoalError):
        raise wrong from None
    if not token.urls or not NAME.fullmatch(token.job) or not is_digest(token.charter):
        raise wrong
    return token


@dataclass(frozen=True)
class JoinRequest:
    """The request of a newcomer. `node`: the name that it would like; `urls`: where it is called; none: it calls."""

    invitation: bytes
    node: str
    public_key: str
    urls: tuple[str, ...]

    def text(self) -> bytes:
        values = {"invitation": self.invitation.decode("ascii"), "node": self.node, "public_key": self.public_key}
        return json.dumps({**values, "urls": list(self.urls)}).encode()


def read_joining(text: bytes) -> JoinRequest:
    """Return the request of a newcomer; nothing in it is verified. Raises `InvalidPayload`."""
    try:
        values: Any = strict_json.loads(text)
        named = {name: values.pop(name) for name in ("invitation", "node", "public_key", "urls")}
        joining = JoinRequest(
            named["invitation"].encode("ascii"), named["node"], named["public_key"], _addresses(named["urls"])
        )
        fits = not values and NAME.fullmatch(joining.node) and re.fullmatch(PUBLIC, joining.public_key)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ShoalError) as error:
        raise _malformed(message_of(error)[:100]) from None
    if not fits:
        raise _malformed("it has an invitation, a node, its public key and its urls")
    return joining


def _addresses(urls: Any) -> tuple[str, ...]:
    """Return addresses in their one form. Raises `ShoalError` for anything else."""
    if not isinstance(urls, list) or len(urls) > URLS_MAX or not all(len(url) <= URL_CHARS for url in urls):
        raise _malformed(f"at most {URLS_MAX} urls, each of {URL_CHARS} characters")
    return tuple(parse(url).url for url in urls)


def _malformed(why: str) -> InvalidPayload:
    hint = "install the same release of shoal on both sides"
    return InvalidPayload(f"no request to join: {why}", code="peer.join", hint=hint)
