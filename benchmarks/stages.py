"""What each stage of an upload costs alone, in processor seconds per GB: the floor under `transfer.py`.

    python benchmarks/stages.py --mb 100 --times 7

One process, one thread, pieces of 1 MiB as the coordinator takes them: receiving over loopback into one block, SHA-256,
writing a file, making it durable, the norm, reading back and folding into float64 sums. "take" is the coordinator's own
code for all between socket and fold, fed from memory; what `transfer.py` measures beyond it and receiving is HTTP,
Python and the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from harness import MB, arguments, show, write_model
from transfer import loopback

from shoal import wire
from shoal.core.message import Ref
from shoal.core.sums import TreeSum
from shoal.core.tree import Tree
from shoal.runtime.store import FileBodies
from shoal_coordinator.meter import Meter
from shoal_coordinator.settings import Settings
from shoal_coordinator.uploads import Form, Uploads

PIECE_BYTES = 1 << 20


class Stages:
    """The stages, each as a call that takes the whole body once."""

    def __init__(self, folder: Path, nbytes: int) -> None:
        self._file = folder / "model"
        self._ref = write_model(self._file, nbytes)
        data = memoryview(self._file.read_bytes())
        self._pieces = [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]
        self._form = Form(wire.payload_layout(wire.layouts_of(wire.open_payload(data))))
        self._scratch = folder / "scratch"
        self._bodies = FileBodies(folder / "bodies")
        settings = Settings(data=folder, disk_reserve_bytes=0, body_bytes_max=2 * len(data))
        self._uploads = Uploads(self._bodies, settings)
        self._sum = TreeSum(self._stored().layout)

    @property
    def nbytes(self) -> int:
        """Of the body."""
        return self._ref.nbytes

    def hash(self) -> None:
        sha = hashlib.sha256()
        for piece in self._pieces:
            sha.update(piece)

    def write(self) -> None:
        self._write(durably=False)

    def write_durably(self) -> None:
        self._write(durably=True)

    def _write(self, *, durably: bool) -> None:
        with self._scratch.open("wb", buffering=0) as file:
            for piece in self._pieces:
                file.write(piece)
            if durably:
                os.fsync(file.fileno())
        self._scratch.unlink()

    def measure(self) -> None:
        meter = Meter(self._form.layout)
        for piece in self._pieces:
            meter.feed(piece)
        assert meter.norm is not None

    def take(self) -> None:
        asyncio.run(self._uploads.take("node", self._ref, 0, self._form, self._arriving()))
        self._bodies.delete(self._ref.digest)

    async def _arriving(self) -> AsyncIterator[memoryview]:
        for piece in self._pieces:
            yield piece

    def fold(self) -> None:
        self._sum.add(self._stored(), 1.0, 1e6)

    def _stored(self) -> Tree:
        """The body in a file, in the page cache as after an upload."""
        if not self._bodies.has("0" * 64):
            self._bodies.adopt(self._file, Ref("0" * 64, self.nbytes))
        found = self._bodies.get(Ref("0" * 64, self.nbytes))["model"]
        assert isinstance(found, Tree)
        return found


def seconds_of(work: Callable[[], object], times: int) -> list[float]:
    """Processor seconds of each call, after one that is not counted."""
    found = []
    for _ in range(times + 1):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return found[1:]


def main() -> int:
    """Measure, and print."""
    parser = arguments(__doc__)
    parser.add_argument("--mb", type=int, default=100, help="size of a body, in millions of bytes")
    parser.add_argument("--times", type=int, default=7)
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    with tempfile.TemporaryDirectory(prefix="shoal-benchmark-") as folder:
        stages = Stages(Path(folder), options.mb * MB)
        gb = stages.nbytes / 1e9
        received = [gb / loopback(stages.nbytes, receives=True) for _ in range(options.times)]
        alone = (stages.hash, stages.write, stages.write_durably, stages.measure, stages.take, stages.fold)
        found = {stage.__name__.replace("_", " "): seconds_of(stage, options.times) for stage in alone}
        rows = [_row(stage, seconds, gb) for stage, seconds in {"receive": received, **found}.items()]
    show(f"stages of an upload of {options.mb} MB", rows, options.json)
    return 0


def _row(stage: str, seconds: list[float], gb: float) -> dict[str, Any]:
    return {"stage": stage, "median_s_per_gb": statistics.median(seconds) / gb, "least_s_per_gb": min(seconds) / gb}


if __name__ == "__main__":
    sys.exit(main())
