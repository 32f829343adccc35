"""A training step of a node of several processes: gradients averaged during backward, beside an average after it.

python benchmarks/site.py

The link between the processes is emulated: an average of n bytes takes n / bandwidth seconds, one after the other, and
needs no processor. The bandwidth is set so that the averages of a step take as long as its backward pass alone
(`--ratio`). `overlapped_ms` is a step of the product's module (`shoal.learn.site`), `serial_ms` one that averages all
gradients after backward. `ratio` is serial / overlapped; 1.5 is the most if forward takes half as long as backward.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from harness import arguments, show
from torch import Tensor, nn

from shoal.learn.site.divided_module import Site


def main() -> int:
    """Start the processes, and print what rank 0 has measured."""
    parser = arguments(__doc__)
    parser.add_argument("--processes", type=int, default=2, help="ranks of the site")
    parser.add_argument("--width", type=int, default=1024, help="width of each of 40 layers")
    parser.add_argument("--batch", type=int, default=32, help="rows of each rank")
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each kind")
    parser.add_argument("--ratio", type=float, default=1.0, help="time of the averages, in backward passes")
    parser.add_argument("--rank", type=int, default=-1, help="for the ranks")
    parser.add_argument("--store", default="", help="for the ranks")
    options = parser.parse_args()
    if options.rank >= 0:
        rank_main(options)
        return 0
    with tempfile.TemporaryDirectory(prefix="shoal-benchmark-") as folder:
        command = [sys.executable, __file__, *sys.argv[1:], "--store", str(Path(folder) / "store")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        started = [
            subprocess.Popen([*command, "--rank", str(rank)], env=environment, stdout=subprocess.PIPE, text=True)
            for rank in range(options.processes)
        ]
        said = [process.communicate()[0] for process in started]
    numbers = [float(text) for text in said[0].split()]
    names = ("forward_ms", "backward_ms", "averages_ms", "overlapped_ms", "serial_ms")
    found = dict(zip(names, numbers, strict=True))
    row = {"processes": options.processes, **found, "ratio": found["serial_ms"] / found["overlapped_ms"]}
    show("a step of a site", [row], options.json)
    return 0


class Link:
    """An emulated link: it averages one vector after the other, in a thread."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s, self._line = bytes_per_s, ThreadPoolExecutor(1)

    def average(self, vector: Tensor) -> torch.futures.Future[Tensor]:
        """Return the average in the future. The values of a benchmark do not matter: they stay those of this rank."""
        made: torch.futures.Future[Tensor] = torch.futures.Future()

        def pass_on() -> None:
            time.sleep(vector.nbytes / self._bytes_per_s)
            made.set_result(vector)

        self._line.submit(pass_on)
        return made


def rank_main(options: Any) -> None:
    """Measure at one rank."""
    dist.init_process_group(
        "gloo", init_method=f"file://{options.store}", rank=options.rank, world_size=options.processes
    )
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(options.width, options.width), nn.ReLU()) for _ in range(40)]
    module, x = nn.Sequential(*layers), torch.randn(options.batch, options.width)
    parameters = list(module.parameters())

    def clear() -> None:
        for one in parameters:
            one.grad = None

    def measured(step: Callable[[], object]) -> float:
        found = []
        for number in range(options.steps + 5):
            clear()
            dist.barrier()
            begun = time.perf_counter()
            step()
            if number >= 5:
                found.append(time.perf_counter() - begun)
        return statistics.median(found)

    forward = measured(lambda: module(x).square().mean())
    backward = measured(lambda: module(x).square().mean().backward()) - forward
    nbytes = sum(one.nbytes for one in parameters)
    shared = torch.tensor([backward])
    dist.broadcast(shared, 0)
    seconds = float(shared) * options.ratio
    link = Link(nbytes / seconds)
    divided = Site().divided(module, torch.device("cpu"), 0)
    divided.module.register_comm_hook(None, lambda _, bucket: link.average(bucket.buffer()))

    def overlapped() -> None:
        with divided.forward(is_last=True):
            loss = divided.module(x).square().mean()
        loss.backward()

    def serial() -> None:
        module(x).square().mean().backward()
        link.average(torch.cat([one.grad.reshape(-1) for one in parameters if one.grad is not None])).wait()

    found = [forward, backward, seconds, measured(overlapped), measured(serial)]
    if options.rank == 0:
        print(*(1000 * one for one in found))
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
