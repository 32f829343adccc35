"""Lengths of frames' heads, computed without encoding them: a simulation counts bytes of messages that it never sends.

`head_size(job, message)` is `len(encode_head(job, message))`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import lru_cache
from typing import Any, get_args

from shoal.core.protocol.message import BlobRef, Message, Metrics
from shoal.validation.strict_json import dumps, plain
from shoal.wire.codec import NEVER_SENT, headed

TEXTS_KEPT = 1 << 16
"""Texts (names of nodes, metrics and jobs) whose length as JSON is kept."""


def head_size(job: str, message: Message) -> int:
    """Return the length of a frame's head, with its four bytes of length, in the newest protocol."""
    size, parts = _FORMS[type(message)]
    size += _text_size(job)
    for name, usual, added, size_of in parts:
        value = getattr(message, name)
        if usual is MISSING or (value is not usual and (usual is None or value != usual)):
            size += added + size_of(value)
    return size


@lru_cache(TEXTS_KEPT)
def _text_size(text: str) -> int:
    return len(dumps({"": text})) - len(b'{"":}')


def _number_size(value: float) -> int:
    return len(repr(value)) if type(value) is float and value - value == 0 else _plain_size(value)


def _ref_size(value: BlobRef) -> int:
    return len('{"digest":"","nbytes":}') + len(value.digest) + len(str(value.nbytes))


def _metrics_size(value: Metrics) -> int:
    size = 1 if value else 2  # braces, colons, and commas between
    for name, number in value.items():
        size += _text_size(name) + _number_size(number) + 2
    return size


def _plain_size(value: Any) -> int:
    return len(json.dumps(plain(value), separators=(",", ":")))


_SIZES: dict[str, Callable[[Any], int]] = {
    "str": _text_size,
    "Kind": _text_size,
    "int": lambda value: len(str(value)),
    "bool": lambda value: 4 if value else 5,
    "float": _number_size,
    "TaskId": lambda value: len("[,]") + len(str(value[0])) + len(str(value[1])),
    "BlobRef | None": _ref_size,
    "Metrics": _metrics_size,
}
"""By the annotation of a field; any other is encoded."""


def _form(kind: type[Any]) -> tuple[int, list[tuple[str, Any, int, Callable[[Any], int]]]]:
    """Return the bytes of every head of this kind, and its fields: name, default or `MISSING`, bytes of the key, size
    of a value."""
    parts = []
    for one in fields(kind):
        usual = one.default if one.default_factory is MISSING else one.default_factory()
        if one.name not in NEVER_SENT:
            parts.append((one.name, usual, len(f',"{one.name}":'), _SIZES.get(str(one.type), _plain_size)))
    return len(headed({"job": "", "type": kind.type_name})) - len('""'), parts


_FORMS = {kind: _form(kind) for kind in get_args(Message)}
