"""The recorded frames for other languages are those of today."""

from __future__ import annotations

import json
from base64 import b64decode

from shoal.core.algorithm.algorithm import tree_slot
from shoal.wire import codec
from shoal.wire.payload import open_payload
from tests.docs.frames_file import INLINE, PATH, recorded


def test_the_file_is_what_is_sent_today() -> None:
    assert PATH.read_text(encoding="utf-8") == recorded(), "python -m tests.docs.frames_file"


def test_the_frames_can_be_read() -> None:
    found = json.loads(PATH.read_text(encoding="utf-8"))
    frames = [codec.decode(b64decode(one["frame"])) for one in found["frames"]]
    assert [frame.payload for frame in frames if frame.payload] == [INLINE, INLINE]
    (payload,) = found["payloads"]
    tree = tree_slot(open_payload(b64decode(payload["payload"])), "model")
    assert list(tree) == list(payload["tensors"])
