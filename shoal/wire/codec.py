"""Frames: messages between nodes and the coordinator as bytes.

A frame has four bytes of length (big endian), a JSON head, and the payload if that has at most `INLINE_BYTES_MAX`
bytes. A longer payload is sent separately, under its SHA-256.

    {"shoal": 1, "job": "digits", "type": "report", "task": [1, 17], "version": 3, "weight": 359.0, "blob": {...}, ...}

The decoder refuses unknown, missing and repeated fields, wrong types and numbers out of range. Measured values may be
NaN or infinite, as the strings "NaN", "Infinity" and "-Infinity", so that a diverged loss is visible.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, get_args

from pydantic import ValidationError

from shoal.core.errors import InvalidPayload, Refused
from shoal.core.protocol import protocol_versions
from shoal.core.protocol.machine import HubEvent
from shoal.core.protocol.message import Message, TaskStatus
from shoal.core.protocol.peer_message import PeerMessage
from shoal.core.protocol.split_message import SplitMessage
from shoal.validation import strict_json
from shoal.validation.message_checks import NAME, check
from shoal.validation.validators import validator_of

plain = strict_json.plain

PROTOCOLS = protocol_versions.PROTOCOLS

MEDIA_TYPE = "application/x-shoal-frame"
INLINE_BYTES_MAX = 256 * 1024
HEAD_BYTES_MAX = 64 * 1024
FRAME_BYTES_MAX = 4 + HEAD_BYTES_MAX + INLINE_BYTES_MAX
STATE_BYTES_MAX = 32 * 1024
NEVER_SENT = ("norm", "node_info", "issued_in_term")  # the receiver's own measurement, and what it was told elsewhere

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


MESSAGES: dict[str, type] = {kind.type_name: kind for kind in get_args(Message)}
_EVENTS: dict[str, type] = {kind.type_name: kind for kind in get_args(HubEvent)}


@dataclass(frozen=True)
class Frame:
    """A message of a job with its payload, which is empty when it is sent separately or does not exist."""

    job: str
    message: Message
    payload: bytes = b""


def _usual(kind: type[Any]) -> dict[str, Any]:
    """Return the defaults of a message's fields as JSON values."""
    found = {one.name: one.default for one in fields(kind) if one.default is not MISSING}
    made = {one.name: one.default_factory() for one in fields(kind) if one.default_factory is not MISSING}
    return {name: plain(value) for name, value in (found | made).items()}


_USUAL: dict[type, dict[str, Any]] = {kind: _usual(kind) for kind in MESSAGES.values()}


def to_json(event: HubEvent | PeerMessage | SplitMessage) -> dict[str, Any]:
    """Return an event or message, with its type, as JSON values."""
    return {"type": event.type_name, **plain(event)}


def from_json(values: dict[str, Any], kinds: dict[str, type] | None = None) -> Any:
    """Return the event or message for values of `to_json`. Raises `InvalidPayload`."""
    rest = dict(values)
    name = rest.pop("type", None)
    kind = (kinds or _EVENTS).get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidPayload(f"no message of type {str(name)[:40]!r}", code="head.type")
    for field in ("metrics", "values"):
        measured = rest.get(field)
        if isinstance(measured, dict):
            rest[field] = {k: _NON_FINITE.get(v, v) if isinstance(v, str) else v for k, v in measured.items()}
    found = validated(kind, str(name), rest)
    if isinstance(found, TaskStatus):
        found = replace(found, monitor_state=_state(found.monitor_state))
    check(found)
    return found


def validated(kind: type, name: str, values: dict[str, Any]) -> Any:
    """Return values as an instance of a dataclass, in strict mode. Raises `InvalidPayload`, which mentions `name`."""
    try:
        return validator_of(kind).validate_json(json.dumps(values), strict=True, extra="forbid")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or name
        raise InvalidPayload(f"{name}: {where[:100]}: {first['msg']}", code="head.invalid") from None
    except RecursionError:  # a value that could just be read may be too deep to be written
        raise InvalidPayload(f"{name}: nested too deep", code="head.invalid") from None


def _state(text: bytes) -> bytes:
    """Return the bytes of a status, which are base64 in a head."""
    try:
        state = b64decode(text, validate=True)
    except ValueError:
        raise InvalidPayload("task_status: monitor_state is not base64", code="head.invalid") from None
    if len(state) > STATE_BYTES_MAX:
        raise InvalidPayload(f"a monitor state of {len(state)} bytes; at most {STATE_BYTES_MAX}", code="head.invalid")
    return state


def encode_head(job: str, found: Message, protocol: int | None = None) -> bytes:
    """Encode a frame without its payload, in the newest protocol unless another is named.

    Fields with their default value are left out: in step, heads are most of the bytes.
    """
    kind: type = type(found)
    usual = _USUAL[kind]
    sent = {name: plain(getattr(found, name)) for name in strict_json.field_names(kind) if name not in NEVER_SENT}
    values = {name: value for name, value in sent.items() if name not in usual or value != usual[name]}
    return headed({"job": job, "type": found.type_name, **values}, protocol)


def headed(values: dict[str, Any], protocol: int | None = None) -> bytes:
    """Return a head with these values, after its length, in a protocol version (default: the newest)."""
    found = strict_json.dumps({"shoal": protocol or PROTOCOLS[-1], **values})
    return len(found).to_bytes(4, "big") + found


def encode(frame: Frame, protocol: int | None = None) -> bytes:
    """Return a frame as bytes."""
    return encode_head(frame.job, frame.message, protocol) + frame.payload


def head_bytes(prefix: bytes, most: int = HEAD_BYTES_MAX) -> int:
    """Return the head's length from the first four bytes of a frame. Raises `InvalidPayload` if it exceeds `most`."""
    length = int.from_bytes(prefix[:4], "big")
    if len(prefix) < 4 or not 2 <= length <= most:
        raise InvalidPayload(f"a head has 2 to {most} bytes", code="head.length")
    return length


def read_values(text: bytes) -> dict[str, Any]:
    """Return the values of a head. Raises `InvalidPayload`, or `Refused` for another protocol version."""
    try:
        values = strict_json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(f"the head is not strict JSON: {error}", code="head.invalid") from None
    if not isinstance(values, dict):
        raise InvalidPayload("the head is not an object", code="head.invalid")
    protocol = values.pop("shoal", None)
    if type(protocol) is not int or protocol not in PROTOCOLS:
        raise Refused(
            f"protocol {str(protocol)[:20]}; this side speaks {', '.join(map(str, PROTOCOLS))}",
            code="protocol.unknown",
            hint="install the same release of shoal on both sides",
        )
    return values


def read_head(text: bytes) -> tuple[dict[str, Any], str]:
    """Return (values, job) of a head. Raises as `read_values`, and `InvalidPayload` without a job."""
    values = read_values(text)
    job = values.pop("job", None)
    if not isinstance(job, str) or not NAME.fullmatch(job):
        raise InvalidPayload("the head names no job", code="head.name")
    return values, job


def read_frame(data: bytes, payload_bytes_max: int = INLINE_BYTES_MAX) -> tuple[dict[str, Any], str, bytes]:
    """Return (values, job, payload) of a frame. Raises as `read_head`, and `InvalidPayload` for a wrong length."""
    length = head_bytes(data[:4])
    if len(data) < 4 + length:
        raise InvalidPayload("truncated head", code="head.length")
    if len(data) - 4 - length > payload_bytes_max:
        raise InvalidPayload(f"a payload of more than {payload_bytes_max} bytes", code="head.length")
    return *read_head(data[4 : 4 + length]), data[4 + length :]


def decode(data: bytes) -> Frame:
    """Return the frame in `data`. Raises `InvalidPayload` for bytes that `encode` does not produce."""
    values, job, payload = read_frame(data)
    if unsent := [name for name in NEVER_SENT if name in values]:
        raise InvalidPayload(f"{unsent[0]}: a field that never travels", code="head.invalid")
    return Frame(job, from_json(values, MESSAGES), payload)


def negotiate(offered: Iterable[int]) -> int:
    """Return the newest protocol version that both sides support. Raises `Refused` without one."""
    theirs = set(offered)
    common = theirs & set(PROTOCOLS)
    if not common:
        raise Refused(
            f"the other side speaks protocol {sorted(theirs)}, this one {list(PROTOCOLS)}",
            code="protocol.unknown",
            hint="install the same release of shoal on both sides",
        )
    return max(common)
