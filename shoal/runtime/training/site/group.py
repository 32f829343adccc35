"""The group of a training process with several ranks: by torchrun, or started here.

Rank 0 is the training process. It starts the others, which end with it, as it ends with them; or torchrun has started
all of them, on one machine or on several, and starts all again if one ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import structlog

from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.errors.phrases import counted
from shoal.runtime.training.cards import LearnerDevices, process_device
from shoal.runtime.training.child_process import KILLED, LACK_OF_MEMORY, how_ended

if TYPE_CHECKING:
    from shoal.learn.site.divided_module import Site

TIMEOUT = timedelta(hours=1)
"""Longest wait of a rank for another one, which may evaluate or load meanwhile."""
STORE, LOOPBACK = "SHOAL_RANK_STORE", "127.0.0.1"
"""Environment variable with the port through which the ranks that rank 0 has started find each other, and its host."""
LOST = 1
"""Exit code of a rank that has lost another one."""
GRACE_S = 3.0
"""Seconds for which rank 0 may still tell the error of a rank that has ended."""
OVER, OVER_WAIT = "shoal/over", timedelta(seconds=10)
"""Key of torchrun's store that rank 0's program sets when it ends without an error, and how long the others wait."""
PORT, FINDING, FIND_WAIT = "shoal/port", 600, timedelta(seconds=1)
"""Key of torchrun's store with the port of rank 0's own, and the number and the distance of tries to reach that."""
DATA_PARALLEL = "data parallel"
"""The way in which ranks train that each have the whole model."""
FAILURE = "failure"
"""Key of the store with the error of a rank that has left the group because of it."""


def rank_here() -> int:
    """Return the rank that torchrun, or the training process that started this one, has given to this process."""
    return int(os.environ.get("RANK", "0"))


def is_started_here() -> bool:
    """Return whether the ranks are rank 0's children, or it has begun to start them: they all see its files."""
    return STORE in os.environ


def ranks_of_torchrun() -> int:
    """Return the number of processes that torchrun has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def end_teller() -> Callable[[], None]:
    """Return a function that tells the ranks that torchrun has started that rank 0 ends without an error."""
    if ranks_of_torchrun() == 1:
        return lambda: None
    store = _torchrun_store()
    return lambda: store.set(OVER, "1")


def _torchrun_store() -> Any:
    """Return the store of torchrun, which has the keys of all groups since it was started."""
    from torch.distributed.rendezvous import rendezvous

    return next(rendezvous("env://"))[0]


def _new_store(of_torchrun: Any, rank: int, size: int) -> Any:
    """Return a store of this group alone, which is at rank 0; the others look for it until they reach it."""
    import torch.distributed as dist

    host = os.environ["MASTER_ADDR"]
    if rank == 0:
        store = dist.TCPStore(host, 0, size, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        of_torchrun.set(PORT, str(store.port))
        return store
    for _ in range(FINDING):
        port = int(of_torchrun.get(PORT))  # of an earlier group, it may be
        with suppress(OSError, RuntimeError):
            socket.create_connection((host, port), FIND_WAIT.total_seconds()).close()  # a store would print its stack
            return dist.TCPStore(host, port, size, wait_for_workers=False, timeout=FIND_WAIT)  # type: ignore[attr-defined]
        time.sleep(FIND_WAIT.total_seconds())
    raise LearnerFailed("rank 0 of this node is not found", hint="look at its log")


def cores_here(processes: int) -> int:
    """Return the number of cores that a job may use; warn that there are fewer than processes."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if cores < processes:
        text = f"{processes} processes share {counted(cores, 'core')}: they load and train slowly"
        structlog.get_logger("shoal.training").warning(text, hint="use at most as many processes as cores or cards")
    return cores


_told = threading.Event()  # it is known which rank has ended


class RankGroup:
    """This process as a rank of a site."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        import torch
        import torch.distributed as dist

        from shoal.learn.site.divided_module import Site

        self._store = store
        self.is_awaited = False
        """True if another rank may wait for a collective call of this one in the present request."""
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        self.site: Site = Site()

    @classmethod
    def join(cls) -> RankGroup:
        """Join the group that the environment names. Waits for all ranks."""
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of a search that is wanted
        import torch.distributed as dist

        rank, size = rank_here(), int(os.environ["WORLD_SIZE"])
        if is_started_here():
            store = dist.TCPStore(LOOPBACK, int(os.environ[STORE]), size, wait_for_workers=False)  # type: ignore[attr-defined]
            return cls(store, rank, size)
        return cls(_new_store(_torchrun_store(), rank, size), rank, size)

    @classmethod
    def start(cls, processes: int) -> RankGroup:
        """Start the other ranks as child processes, and join them as rank 0."""
        listener = socket.create_server((LOOPBACK, 0))  # a store's own would listen at all addresses
        port = listener.getsockname()[1]
        local = {} if sys.platform != "linux" else {"GLOO_SOCKET_IFNAME": "lo"}
        threads = str(max(1, cores_here(processes) // processes))
        common = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), STORE: str(port)}
        for name, value in {"OMP_NUM_THREADS": threads, "TORCH_CPP_LOG_LEVEL": "ERROR", **local}.items():
            os.environ.setdefault(name, value)
        os.environ.update(common, RANK="0", LOCAL_RANK="0")
        for rank in range(1, processes):
            named = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, "-m", "shoal.runtime.training.child"]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, env=named)
            threading.Thread(target=_end_with, args=(process, rank), daemon=True).start()
        import torch.distributed as dist

        store = dist.TCPStore(  # type: ignore[attr-defined]
            LOOPBACK, port, processes, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        return cls(store, 0, processes)

    def pass_collectives(self) -> None:
        """Note that this rank has made the last collective call of the present request."""
        self.is_awaited = False

    def leave(self, failure: bytes) -> None:
        """End this process, whose error the others cannot wait for: they may be in the middle of a sum."""
        with suppress(RuntimeError):  # rank 0, which has the store, has ended
            self._store.set(FAILURE, failure)
        exit_now()

    def failure(self) -> bytes:
        """Return the error of a rank that has left because of it; empty if none has told one."""
        try:
            return bytes(self._store.get(FAILURE)) if self._store.check([FAILURE]) else b""
        except RuntimeError:
            return b""

    def end(self, why: str) -> None:
        """End this process, because the group is not complete any more; `why` is how torch told it."""
        if is_started_here():
            _told.wait(0.0 if self.site.rank else GRACE_S)
            exit_now()
        sys.stderr.write(f"rank {self.site.rank}: another rank of this node has ended: {why}"[:500] + "\n")
        if self.site.rank:
            with suppress(RuntimeError):
                _torchrun_store().wait([OVER], OVER_WAIT)
                exit_now(0)
        exit_now()

    @contextmanager
    def needed(self) -> Iterator[None]:
        """End this process if another rank is lost in the block."""
        try:
            yield
        except RuntimeError as error:
            self.end(str(error))

    def attach(self, learner: Any) -> LearnerDevices:
        """Give the learner this site, and the card of its rank; return the device of this rank, and how it trains.

        Raises `InvalidJob` unless it is a `TorchLearner`.
        """
        from shoal.learn.training.torch_learner import TorchLearner

        if not isinstance(learner, TorchLearner):
            text = f"a node of {self.site.size} processes needs a TorchLearner, and this is {type(learner).__name__}"
            raise InvalidJob(text, code="learner.processes", hint="join with one process")
        device = str(learner.device)  # that of a whole module: a divided one is elsewhere between tasks
        if device.startswith("cuda"):
            device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        learner.use(device=device, site=self.site)
        parallel = learner.config.parallel
        return LearnerDevices((process_device(device),), DATA_PARALLEL if parallel is None else parallel.title)


def _end_with(process: subprocess.Popen[bytes], rank: int) -> None:
    """End this process soon after another rank has ended; the body of a thread."""
    code = process.wait()
    why = f" ({LACK_OF_MEMORY})" if code == KILLED else ""
    sys.stderr.write(f"rank {rank} of this node has ended {how_ended(code)}{why}\n")
    _told.set()
    threading.Timer(GRACE_S, exit_now).start()


def exit_now(code: int = LOST) -> None:
    """Exit without the interpreter's teardown, which would wait for the threads of a group that is not complete."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
