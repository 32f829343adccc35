"""The bytes that peers exchange: message batches.

One request to a peer, or its answer, carries one: four bytes of length (big endian), one JSON head with all messages,
and then the blobs that they name, one after the other, in the order of the messages.

    {"shoal": 1, "job": "digits", "messages": [{"type": "exchange_offer", "node": "a", "id": ["a", 3, 17], …}]}

The blobs' lengths and SHA-256 stand in the head. So a receiver knows the whole length from the head, may refuse before
a byte of a model has come, and authenticates the whole with the head: `Shoal-Digest` is the SHA-256 of the four bytes
and the head.

Heads are as strict as those of `shoal.wire.codec`, whose machinery this uses: unknown, missing or repeated fields,
wrong types, numbers out of range and what is not finite are refused. Nothing here reads blobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

from shoal.core.errors import InvalidPayload
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.peer_message import MemberUpdate, MixingMessage, PeerMessage, RelayRequest, RelayResponse
from shoal.validation.message_checks import COUNT_MAX, NAME, WEIGHT_MAX, is_digest
from shoal.wire import codec

MEDIA_TYPE = "application/x-shoal-peer-messages"
HEAD_BYTES_MAX = 1 << 20
MESSAGES_MAX = 64
BLOBS_MAX = 4
MEMBER_UPDATES_MAX = 1024
"""In one message; a peer's own limit (`Pace.piggyback_max`) is lower."""
SUSPECTED_BY_MAX = 16
VERSION_VECTOR_MAX = 4096
"""Peers that a version vector may name."""
TEXT_MAX = 1000

MESSAGES: dict[str, type] = {kind.type_name: kind for kind in get_args(PeerMessage)}


@dataclass(frozen=True)
class MessageBatch:
    """Content of a head."""

    job: str
    messages: tuple[PeerMessage, ...]

    @property
    def blobs(self) -> list[BlobRef]:
        """The blobs that follow the head, in their order."""
        return [ref for one in self.messages if (ref := blob_of(one)) is not None]


def blob_of(message: PeerMessage) -> BlobRef | None:
    """Return the blob that travels with a message."""
    return getattr(message, "blob", None) if isinstance(message, MixingMessage) else None


def encode(batch: MessageBatch) -> bytes:
    """Encode a batch's length and head; its blobs follow."""
    return codec.headed({"job": batch.job, "messages": [_values_of(one) for one in batch.messages]})


def fitting(messages: Sequence[PeerMessage], blobs_max: int = BLOBS_MAX) -> int:
    """Return how many of these messages, from the first on, fit into one batch: at least one, if there is one."""
    blobs = head_bytes = 0
    for count, one in enumerate(messages[:MESSAGES_MAX]):
        blobs += blob_of(one) is not None
        head_bytes += len(codec.headed(_values_of(one)))
        if count and (blobs > blobs_max or head_bytes > HEAD_BYTES_MAX // 2):
            return count
    return min(len(messages), MESSAGES_MAX)


def head_bytes(prefix: bytes) -> int:
    """Return the head's length from a batch's first four bytes. Raises `InvalidPayload` above `HEAD_BYTES_MAX`."""
    return codec.head_bytes(prefix, HEAD_BYTES_MAX)


def decode(text: bytes) -> MessageBatch:
    """Decode the batch of a whole head, without its length. Raises `InvalidPayload`; `Refused` for another
    protocol."""
    values, job = codec.read_head(text)
    listed = values.pop("messages", None)
    if values or not isinstance(listed, list) or not 1 <= len(listed) <= MESSAGES_MAX:
        raise InvalidPayload(f"a message batch has a job and 1 to {MESSAGES_MAX} messages", code="head.invalid")
    batch = MessageBatch(job, tuple(_message_of(one) for one in listed))
    if len(batch.blobs) > BLOBS_MAX:
        raise InvalidPayload(f"{len(batch.blobs)} blobs; at most {BLOBS_MAX}", code="head.invalid")
    return batch


def _values_of(message: PeerMessage) -> dict[str, Any]:
    values = codec.to_json(message)
    if isinstance(message, RelayRequest | RelayResponse):
        values["message"] = codec.to_json(message.message)
        values["message"].pop("norm", None)  # the receiver's own measurement
    return values


def _message_of(values: Any) -> PeerMessage:
    if not isinstance(values, dict):
        raise InvalidPayload("a message is an object", code="head.invalid")
    rest = dict(values)
    name = rest.pop("type", None)
    kind = MESSAGES.get(name) if isinstance(name, str) else None
    if kind is None or not isinstance(name, str):
        raise InvalidPayload(f"no message of type {str(name)[:40]!r}", code="head.type")
    if issubclass(kind, RelayRequest | RelayResponse):
        return _passed_on(kind, name, rest)
    found: PeerMessage = codec.validated(kind, name, rest)
    _check(found)
    return found


def _passed_on(
    kind: type[RelayRequest | RelayResponse], name: str, values: dict[str, Any]
) -> RelayRequest | RelayResponse:
    """Decode a message of the node protocol within one of the peers'."""
    inner = values.pop("message", None)
    if not isinstance(inner, dict) or "norm" in inner or values.keys() != {"node"}:
        raise InvalidPayload(f"{name}: it has a node and a message", code="head.invalid")
    if not isinstance(values["node"], str):
        raise InvalidPayload(f"{name}: node: it is not a text", code="head.invalid")
    found = kind(values["node"], codec.from_json(inner, codec.MESSAGES))
    _check_name(found.node)
    return found


# Checks beyond types


def _check(message: Any) -> None:
    """Check ranges, lengths and alphabets, by the fields' names: each means the same in every message."""
    for field in fields(message):
        _CHECKS[field.name](getattr(message, field.name))


def _check_name(value: str) -> None:
    if not NAME.fullmatch(value):
        raise InvalidPayload(f"{value[:70]!r} is not a node's name", code="head.name")


def _check_whole(value: int) -> None:
    if not 0 <= value < 2**63:
        raise InvalidPayload(f"{value} is out of range", code="head.range")


def _check_id(value: tuple[str, int, int]) -> None:
    _check_name(value[0])
    _check_whole(value[1])
    _check_whole(value[2])


def _check_ref(value: BlobRef | None) -> None:
    if value is not None and not (is_digest(value.digest) and 0 < value.nbytes <= COUNT_MAX):
        raise InvalidPayload("a body is named by 64 hexadecimal digits and its length", code="head.digest")


def _check_weight(value: float) -> None:
    if not 0 <= value <= WEIGHT_MAX:
        raise InvalidPayload(f"a weight of {value}; 0 to {WEIGHT_MAX:g}", code="head.weight")


def _check_length(value: float) -> None:
    if not (value >= 0 and math.isfinite(value)):
        raise InvalidPayload(f"{value} is not a length", code="head.range")


def _check_step_fraction(value: float) -> None:
    if not 0 <= value <= 1:
        raise InvalidPayload(f"a fraction of {value}; 0 to 1", code="head.range")


def _check_text(value: str) -> None:
    if len(value) > TEXT_MAX:
        raise InvalidPayload(f"a text of {len(value)} characters; at most {TEXT_MAX}", code="head.text")


def _check_version_vector(value: dict[str, int]) -> None:
    if len(value) > VERSION_VECTOR_MAX:
        raise InvalidPayload(
            f"{len(value)} peers in a version vector; at most {VERSION_VECTOR_MAX}", code="head.version-vector"
        )
    for node, count in value.items():
        _check_name(node)
        _check_whole(count)


def _check_updates(value: Iterable[MemberUpdate]) -> None:
    updates = tuple(value)
    if len(updates) > MEMBER_UPDATES_MAX:
        raise InvalidPayload(f"{len(updates)} updates; at most {MEMBER_UPDATES_MAX}", code="head.updates")
    for update in updates:
        if len(update.suspected_by) > SUSPECTED_BY_MAX:
            raise InvalidPayload(
                f"{len(update.suspected_by)} peers suspect one; at most {SUSPECTED_BY_MAX}", code="head.updates"
            )
        for name in (update.node, *update.suspected_by):
            _check_name(name)
        _check_whole(update.incarnation)


def _no_check(_: object) -> None:
    """Check nothing: the type says it all."""


_CHECKS: dict[str, Callable[[Any], None]] = {
    **dict.fromkeys(("node", "of", "target"), _check_name),
    **dict.fromkeys(("round", "rounds", "step", "piece", "term", "version", "incarnation", "seq"), _check_whole),
    **dict.fromkeys(("blob", "model"), _check_ref),
    **dict.fromkeys(("weight", "mass"), _check_weight),
    **dict.fromkeys(("hears_hub", "is_gossiping"), _no_check),
    **dict.fromkeys(("longest_step", "wait_s", "norm"), _check_length),
    "step_fraction": _check_step_fraction,
    "id": _check_id,
    **dict.fromkeys(("why", "group"), _check_text),
    "version_vector": _check_version_vector,
    "updates": _check_updates,
}
