"""docs/reference/frames.json: recorded frames and a payload, for clients in other languages.

`python -m tests.docs.frames_file` writes it again after a change of the protocol."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from typing import Any

import numpy as np

from shoal.conformance.cases import every_type
from shoal.core.model.tree import Tree
from shoal.core.protocol import message as m
from shoal.wire import codec
from shoal.wire.payload import payload_pieces
from tests.conventions.sources import ROOT

PATH = ROOT / "docs/reference/frames.json"
SMALL = Tree.of({"w": np.array([0.5, -1.0], np.float32), "seen": np.array(2, np.int64)})
INLINE = b"".join(payload_pieces({"model": SMALL}))
HERE = m.BlobRef(hashlib.sha256(INLINE).hexdigest(), len(INLINE))
FAR = m.BlobRef("9f86" * 16, 400_096)
METRICS = {"train/loss": 0.25, "eval/loss": float("inf")}
MESSAGES: list[m.Message] = [
    m.Task((1, 17), "clinic-a", "train", 3, 2**56 - 1, HERE),
    m.Task((2, 1), "clinic-a", "train", 3, 5, FAR, FAR, {"new_reference": 1.0}, 2, recall=True, checks_allowed=4),
    m.Task((1, 1), "clinic-a", "init", 0, 7),
    m.Amendment((1, 17), 2, recall=True, checks_allowed=4),
    m.NoTask((1, 17)),
    m.Ack((1, 17), counted=True),
    m.Ack((1, 17), counted=False, why="version 3 is closed"),
    m.Stop("10 versions"),
    m.Stop("the model of this job has other tensors", model_differs=True),
    m.CoordinatorAlive(4),
    m.CoordinatorPing("clinic-a", -1),
    m.TaskStatus("clinic-a", (1, 17), 3, {"divergence": float("nan")}, b"\x00\x01"),
    m.Report("clinic-a", (1, 17), 3, 359.0, HERE, METRICS),
    m.TaskFailed("clinic-a", (1, 17), 'the disk is "full"', "download"),
]


def recorded() -> str:
    """The file's text."""
    frames = []
    for one in MESSAGES:
        payload = INLINE if getattr(one, "blob", None) == HERE else b""
        frame = codec.encode(codec.Frame("digits", one, payload))
        head = json.loads(frame[4 : 4 + int.from_bytes(frame[:4], "big")])
        frames.append({"head": head, "payload_bytes": len(payload), "frame": b64encode(frame).decode()})
    model = every_type()
    tensors = {leaf.name: {"dtype": leaf.dtype, "shape": list(leaf.shape)} for leaf in model.layout.leaves}
    body = b64encode(b"".join(payload_pieces({"model": model}))).decode()
    found: dict[str, Any] = {"frames": frames, "payloads": [{"tensors": tensors, "payload": body}]}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(recorded(), encoding="utf-8")
