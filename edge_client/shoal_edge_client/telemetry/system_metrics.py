"""Periodic measurements of this node's machine, which the coordinator shows."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import structlog

from shoal.core.errors import ShoalError
from shoal.runtime.http.node_client import NodeClient

READ_S = 10.0
"""Patience for an answer."""

FINAL_SEND_S = 1.0
"""Longest time in seconds by which a sample in transit delays the end of the process."""

LOOPBACK = ("lo", "Loopback")

Sample = dict[str, float | bool]


class SystemProbe:
    """Probe of processor, memory, GPU, network, disk and battery. `folder`: the node's state; `cards`: returns the
    UUIDs of the cards to measure, as `gpus` takes them.

    Unavailable values are left out. In a container, processor and memory are the host's.
    """

    def __init__(self, folder: Path, cards: Callable[[], frozenset[str] | None]) -> None:
        self._folder, self._cards = folder, cards
        self._process = psutil.Process()
        self._crossed = _crossed(), time.monotonic()
        psutil.cpu_percent()  # the first answer of a process means nothing

    def sample(self) -> Sample:
        """Measure once. Rates and processor share are those since the previous call."""
        memory = psutil.virtual_memory()
        found: Sample = {
            "cpu": min(1.0, psutil.cpu_percent() / 100),
            "memory_bytes": float(memory.total - memory.available),
            "memory_total_bytes": float(memory.total),
            "process_bytes": self._own_memory(),
            **self._network(),
            **gpus(self._cards()),
            **_battery(),
        }
        try:
            found["disk_free_bytes"] = float(psutil.disk_usage(str(self._folder)).free)
        except OSError as error:
            structlog.get_logger("edge_client.system").debug("the disk cannot be asked", why=str(error))
        return found

    def _own_memory(self) -> float:
        """Return the memory of this process and its children."""
        total = 0
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.Error:  # it has ended meanwhile
                continue
        return float(total)

    def _network(self) -> Sample:
        before, at = self._crossed
        now = time.monotonic()
        sent, received = _crossed()
        self._crossed, seconds = ((sent, received), now), max(now - at, 1e-3)
        rates = {"sent_bytes_per_s": sent - before[0], "received_bytes_per_s": received - before[1]}
        return {name: max(0.0, crossed / seconds) for name, crossed in rates.items()}


def _crossed() -> tuple[int, int]:
    """Return the bytes (sent, received) through all interfaces but loopback."""
    counters = [one for name, one in psutil.net_io_counters(pernic=True).items() if not name.startswith(LOOPBACK)]
    return sum(one.bytes_sent for one in counters), sum(one.bytes_recv for one in counters)


def _battery() -> Sample:
    found = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return {} if found is None else {"battery": found.percent / 100, "charging": bool(found.power_plugged)}


def gpus(cards: frozenset[str] | None) -> Sample:
    """Return the mean load and the sum of memory of the NVIDIA GPUs with these UUIDs that this machine has, or of all
    its GPUs for None; empty without any, and without the library."""
    if cards is not None and not cards:
        return {}
    try:
        ctypes.CDLL("libnvidia-ml.so.1")  # without the driver pynvml takes 3 MB, and can only fail
        import pynvml
    except (ImportError, OSError):
        return {}
    try:
        pynvml.nvmlInit()
        devices = _all(pynvml) if cards is None else _with_uuids(pynvml, cards)
        if not devices:
            return {}
        memory = [pynvml.nvmlDeviceGetMemoryInfo(device) for device in devices]
        load = _load(pynvml, devices)
    except pynvml.NVMLError:
        return {}
    return {
        **load,
        "gpu_memory_bytes": float(sum(one.used for one in memory)),
        "gpu_memory_total_bytes": float(sum(one.total for one in memory)),
    }


def _all(pynvml: Any) -> list[Any]:
    return [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]


def _with_uuids(pynvml: Any, uuids: frozenset[str]) -> list[Any]:
    """Return the GPUs, or parts of GPUs, with these UUIDs; another machine of the site has those that are not found."""
    found: list[Any] = []
    for uuid, kind in itertools.product(sorted(uuids), ("GPU", "MIG")):
        with suppress(pynvml.NVMLError):
            found.append(pynvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}"))
    return found


def _load(pynvml: Any, devices: list[Any]) -> Sample:
    """Return the mean load of GPUs; empty for a part of one, whose load is not measured."""
    try:
        busy = [pynvml.nvmlDeviceGetUtilizationRates(device).gpu for device in devices]
    except pynvml.NVMLError:
        return {}
    return {"gpu": sum(busy) / len(busy) / 100}


class SystemReporter:
    """Sender of samples at an interval, in a thread and over its own connection.

    Samples that cannot be sent are dropped.
    """

    def __init__(
        self, probe: SystemProbe, every_s: float, open_client: Callable[[], NodeClient], credential: Callable[[], str]
    ) -> None:
        self._probe, self._every_s = probe, every_s
        self._open, self._credential = open_client, credential
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-system-metrics", daemon=True)
        self._log: Any = structlog.get_logger("edge_client.system")

    def start(self) -> None:
        """Start to measure and send."""
        self._thread.start()

    def stop(self) -> None:
        """Send nothing more."""
        self._ending.set()
        self._thread.join(FINAL_SEND_S)

    def _run(self) -> None:
        pause_s = min(1.0, self._every_s)  # people who look at a new node see something soon
        while not self._ending.wait(pause_s):
            pause_s = self._every_s if self._send() else min(1.0, self._every_s)

    def _send(self) -> bool:
        """Send a sample; return whether the node was known."""
        credential = self._credential()
        if not credential:
            return False
        with self._open() as client:
            client.link.credential = credential
            try:
                client.system_metrics(self._probe.sample(), READ_S)
            except ShoalError as error:
                self._log.debug("system metrics not sent", why=error.message)
        return True
