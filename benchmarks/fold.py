"""Throughput of folding reports into the running sum, beside the limits of the machine's memory and hash.

python benchmarks/fold.py --mb 100 --times 10

One thread, no HTTP. The coordinator's own code folds a report of float32 noise into `float64` and `fixed` sums, from
memory and from a stored blob (in the page cache, as after an upload). Beside it, in the same run: the plain numpy
loops
that bound it (copy; a running float32 sum), numpy's own float64 sum, and SHA-256, which every byte passes once.

Printed: gigabytes of report per processor second, the median over all runs, and the ratio to the plain float32 loop.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import MB, arguments, show, write_model

from shoal.core.model.aggregation import TreeSum
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import BlobRef
from shoal.runtime.blob_files import FileBlobs
from shoal.wire.payload import measure

WEIGHT = 1.0
"""Small, so that the fixed sums, which have a range, take many reports."""
BLOCK = 1 << 16
"""Elements that the plain loop takes at once: 256 KB, which stay in the core's cache."""
PLAIN = "plain loop: float32 sum by blocks"


def ways(blobs: FileBlobs, ref: BlobRef) -> dict[str, Callable[[], object]]:
    """Return the measured functions; each call takes the whole report once."""
    stored = tree_of(blobs, ref)
    report = Tree.of({name: stored[name].copy() for name in stored})
    norm = measure({"model": report})
    flat = np.concatenate([report[name].ravel() for name in report])
    copy, single, wide = np.empty_like(flat), np.zeros_like(flat), np.zeros(flat.size, np.float64)
    data = flat.view(np.uint8).data
    sums = {kind: TreeSum(report.layout, kind) for kind in ("float64", "fixed")}
    return {
        "plain loop: copy": lambda: np.copyto(copy, flat),
        PLAIN: lambda: add_blocks(single, flat),
        "numpy: float64 sum += float32 * weight": lambda: np.add(wide, flat * np.float64(WEIGHT), out=wide),
        "fold, float64 sums, from memory": lambda: sums["float64"].add(report, WEIGHT, norm),
        "fold, fixed sums, from memory": lambda: sums["fixed"].add(report, WEIGHT, norm),
        "fold, float64 sums, stored body": lambda: sums["float64"].add(tree_of(blobs, ref), WEIGHT, norm),
        "fold, fixed sums, stored body": lambda: sums["fixed"].add(tree_of(blobs, ref), WEIGHT, norm),
        "norm and finiteness, from memory": lambda: measure({"model": report}),
        "SHA-256": lambda: hashlib.sha256(data).digest(),
    }


def tree_of(blobs: FileBlobs, ref: BlobRef) -> Tree:
    """Open a stored model; its numbers are read when they are used."""
    found = blobs.get(ref)["model"]
    assert isinstance(found, Tree)
    return found


def add_blocks(total: np.ndarray[Any, Any], part: np.ndarray[Any, Any]) -> None:
    """Add to a running float32 sum, block by block with one small buffer: the least that a fold can do."""
    scratch = np.empty(BLOCK, np.float32)
    for start in range(0, total.size, BLOCK):
        taken = part[start : start + BLOCK]
        np.multiply(taken, np.float32(WEIGHT), out=scratch[: taken.size])
        total[start : start + BLOCK] += scratch[: taken.size]


def seconds_of(work: Callable[[], object], times: int) -> float:
    """Return the median processor seconds of one call, after a call that is not counted."""
    found = []
    for _ in range(times + 1):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return statistics.median(found[1:])


def main() -> int:
    """Measure, and print."""
    parser = arguments(__doc__)
    parser.add_argument("--mb", type=int, default=100, help="size of a report, in millions of bytes")
    parser.add_argument("--times", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-benchmark-") as folder:
        file = Path(folder) / "report"
        ref = write_model(file, options.mb * MB)
        blobs = FileBlobs(Path(folder) / "blobs")
        blobs.adopt(file, ref)
        found = {name: seconds_of(work, options.times) for name, work in ways(blobs, ref).items()}
    rows = [
        {"what": name, "gb_per_cpu_s": ref.nbytes / 1e9 / seconds, "of_the_plain_loop": found[PLAIN] / seconds}
        for name, seconds in found.items()
    ]
    show(f"fold of a report of {options.mb} MB", rows, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
