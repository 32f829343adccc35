"""How this node's machine does: measured now and then, and shown at the coordinator, for people."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import structlog

from shoal.core.errors import ShoalError
from shoal.runtime.node_link import NodeLink

READ_S = 10.0
"""Patience for an answer."""

FAREWELL_S = 1.0
"""How long the end of the process may be held up by a sample on its way."""

LOOPBACK = ("lo", "Loopback")

Sample = dict[str, float | bool]


class Probe:
    """Measures processor, memory, GPU, network, disk and battery. `folder`: where the node keeps its state.

    What the machine does not have, or does not tell, is left out. In a container processor and memory are the host's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = psutil.Process()
        self._crossed = _crossed(), time.monotonic()
        psutil.cpu_percent()  # the first answer of a process means nothing

    def sample(self) -> Sample:
        """Measure once. Rates and the processor's share are those since the call before."""
        memory = psutil.virtual_memory()
        found: Sample = {
            "cpu": min(1.0, psutil.cpu_percent() / 100),
            "memory_bytes": float(memory.total - memory.available),
            "memory_total_bytes": float(memory.total),
            "process_bytes": self._own_memory(),
            **self._network(),
            **gpus(),
            **_battery(),
        }
        try:
            found["disk_free_bytes"] = float(psutil.disk_usage(str(self._folder)).free)
        except OSError as error:
            structlog.get_logger("edge_client.system").debug("the disk cannot be asked", why=str(error))
        return found

    def _own_memory(self) -> float:
        """That of this process and of those that it has started, such as the one that trains."""
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
    """Bytes (sent, received) so far through all interfaces but loopback."""
    counters = [one for name, one in psutil.net_io_counters(pernic=True).items() if not name.startswith(LOOPBACK)]
    return sum(one.bytes_sent for one in counters), sum(one.bytes_recv for one in counters)


def _battery() -> Sample:
    found = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return {} if found is None else {"battery": found.percent / 100, "charging": bool(found.power_plugged)}


def gpus() -> Sample:
    """How busy NVIDIA's GPUs are, and their memory; nothing where there are none, or no `nvidia-ml-py`."""
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        devices = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        memory = [pynvml.nvmlDeviceGetMemoryInfo(device) for device in devices]
        busy = [pynvml.nvmlDeviceGetUtilizationRates(device).gpu for device in devices]
    except pynvml.NVMLError:
        return {}
    if not devices:
        return {}
    return {
        "gpu": sum(busy) / len(busy) / 100,
        "gpu_memory_bytes": float(sum(one.used for one in memory)),
        "gpu_memory_total_bytes": float(sum(one.total for one in memory)),
    }


class SystemReporter:
    """Sends a sample every so many seconds, in a thread and over a connection of its own.

    What cannot be sent is dropped.
    """

    def __init__(
        self, probe: Probe, every_s: float, open_link: Callable[[], NodeLink], credential: Callable[[], str]
    ) -> None:
        self._probe, self._every_s = probe, every_s
        self._open, self._credential = open_link, credential
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-system-metrics", daemon=True)
        self._log: Any = structlog.get_logger("edge_client.system")

    def begin(self) -> None:
        """Measure and send from now on."""
        self._thread.start()

    def end(self) -> None:
        """Send nothing more."""
        self._ending.set()
        self._thread.join(FAREWELL_S)

    def _run(self) -> None:
        pause_s = min(1.0, self._every_s)  # people who look at a new node see something soon
        while not self._ending.wait(pause_s):
            pause_s = self._every_s if self._send() else min(1.0, self._every_s)

    def _send(self) -> bool:
        """Whether the node was known, so that there was somebody to tell."""
        credential = self._credential()
        if not credential:
            return False
        with self._open() as link:
            link.credential = credential
            try:
                link.system_metrics(self._probe.sample(), READ_S)
            except ShoalError as error:
                self._log.debug("system metrics not sent", why=error.message)
        return True
