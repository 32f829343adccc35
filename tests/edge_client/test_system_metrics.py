"""What a node measures of its machine, and how it is told."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import psutil
import pytest

from shoal.core.errors import Unreachable
from shoal_edge_client.telemetry import system_metrics as system
from shoal_edge_client.telemetry.system_metrics import SystemProbe, SystemReporter, gpus
from tests.support.waiting import PATIENCE_S


def test_this_machine(tmp_path: Path) -> None:
    found = SystemProbe(tmp_path).sample()
    assert 0 <= found["cpu"] <= 1
    assert found["memory_total_bytes"] == psutil.virtual_memory().total
    assert 0 < found["process_bytes"] < found["memory_total_bytes"]
    assert 0 < found["memory_bytes"] < found["memory_total_bytes"]
    assert found["disk_free_bytes"] > 0


def test_rates_are_of_the_time_between_two_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {
        "eth0": SimpleNamespace(bytes_sent=1000, bytes_recv=5000),
        "lo": SimpleNamespace(bytes_sent=9, bytes_recv=9),
    }
    clock = [10.0]
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic: counters)
    monkeypatch.setattr(system.time, "monotonic", lambda: clock[0])
    probe = SystemProbe(tmp_path)
    counters["eth0"] = SimpleNamespace(bytes_sent=3000, bytes_recv=5000)
    clock[0] = 14.0
    found = probe.sample()
    assert (found["sent_bytes_per_s"], found["received_bytes_per_s"]) == (500.0, 0.0)


def test_a_battery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    battery = SimpleNamespace(percent=40, power_plugged=False)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    found = SystemProbe(tmp_path).sample()
    assert (found["battery"], found["charging"]) == (0.4, False)


def fake_nvml(count: int) -> Any:
    module: Any = ModuleType("pynvml")
    module.NVMLError = type("NVMLError", (Exception,), {})
    module.nvmlInit = lambda: None
    module.nvmlDeviceGetCount = lambda: count
    module.nvmlDeviceGetHandleByIndex = lambda number: number
    module.nvmlDeviceGetMemoryInfo = lambda number: SimpleNamespace(used=10 + number, total=100)
    module.nvmlDeviceGetUtilizationRates = lambda number: SimpleNamespace(gpu=20 * (number + 1))
    return module


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system.ctypes, "CDLL", lambda _name: None)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(2))
    assert gpus() == {"gpu": pytest.approx(0.3), "gpu_memory_bytes": 21.0, "gpu_memory_total_bytes": 200.0}
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(0))
    assert gpus() == {}
    broken = fake_nvml(1)
    broken.nvmlInit = lambda: (_ for _ in ()).throw(broken.NVMLError("no driver"))
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    assert gpus() == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus() == {}


def test_without_a_driver_the_library_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(system.ctypes, "CDLL", missing)
    assert gpus() == {}
    assert "pynvml" not in sys.modules


class FakeClient:
    """Takes samples in place of a coordinator, which is out of reach at first."""

    def __init__(self, taken: list[dict[str, Any]], fails: list[bool], enough: threading.Event) -> None:
        self.link, self.credential = self, ""
        self._taken, self._fails, self._enough = taken, fails, enough

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def system_metrics(self, sample: dict[str, Any], read_s: float) -> None:
        assert self.credential == "shn_x"
        if self._fails.pop() if self._fails else False:
            raise Unreachable("no way")
        self._taken.append(sample)
        if len(self._taken) == 2:
            self._enough.set()


def test_a_sample_that_cannot_be_sent_is_dropped_and_the_next_one_is_sent(tmp_path: Path) -> None:
    taken: list[dict[str, Any]] = []
    fails, enough, credentials = [True], threading.Event(), ["shn_x", ""]  # the node is not known at first
    open_client: Callable[[], Any] = lambda: FakeClient(taken, fails, enough)  # noqa: E731

    def credential() -> str:
        return credentials.pop() if len(credentials) > 1 else credentials[0]

    reporter = SystemReporter(SystemProbe(tmp_path), 0.01, open_client, credential)
    reporter.start()
    assert enough.wait(PATIENCE_S)
    reporter.stop()
    assert taken[0]["memory_total_bytes"] > 0
