"""System metrics of a node, and their reports."""

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
from shoal.runtime.training.cards import LearnerDevices, ProcessDevice
from shoal_edge_client.process import _reporters
from shoal_edge_client.settings import EdgeSettings
from shoal_edge_client.telemetry import system_metrics as system
from shoal_edge_client.telemetry.system_metrics import SystemProbe, SystemReporter, gpus
from tests.support.waiting import PATIENCE_S


def no_card() -> frozenset[str]:
    """Return that the learner uses no GPU."""
    return frozenset()


def test_this_machine(tmp_path: Path) -> None:
    found = SystemProbe(tmp_path, no_card).sample()
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
    probe = SystemProbe(tmp_path, no_card)
    counters["eth0"] = SimpleNamespace(bytes_sent=3000, bytes_recv=5000)
    clock[0] = 14.0
    found = probe.sample()
    assert (found["sent_bytes_per_s"], found["received_bytes_per_s"]) == (500.0, 0.0)


def test_a_battery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    battery = SimpleNamespace(percent=40, power_plugged=False)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    found = SystemProbe(tmp_path, no_card).sample()
    assert (found["battery"], found["charging"]) == (0.4, False)


def fake_nvml(count: int) -> Any:
    """Stand-in for NVIDIA's library with GPUs of the UUIDs GPU-0, GPU-1, …, the first of which has a part MIG-7."""
    module: Any = ModuleType("pynvml")
    module.NVMLError = type("NVMLError", (Exception,), {})
    handles = {f"GPU-{number}": number for number in range(count)} | {"MIG-7": 7}

    def by_uuid(uuid: str) -> int:
        if uuid not in handles:
            raise module.NVMLError("not found")
        return handles[uuid]

    def rates(number: int) -> Any:
        if number == 7:
            raise module.NVMLError("not supported")
        return SimpleNamespace(gpu=20 * (number + 1))

    module.nvmlInit = lambda: None
    module.nvmlDeviceGetCount = lambda: count
    module.nvmlDeviceGetHandleByIndex = lambda number: number
    module.nvmlDeviceGetHandleByUUID = by_uuid
    module.nvmlDeviceGetMemoryInfo = lambda number: SimpleNamespace(used=10 + number, total=100)
    module.nvmlDeviceGetUtilizationRates = rates
    return module


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Return a function that puts a module in the place of NVIDIA's library."""
    monkeypatch.setattr(system.ctypes, "CDLL", lambda _name: None)
    return lambda module: monkeypatch.setitem(sys.modules, "pynvml", module)


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        ({"1"}, {"gpu": 0.4, "gpu_memory_bytes": 11.0, "gpu_memory_total_bytes": 100.0}),
        ({"7"}, {"gpu_memory_bytes": 17.0, "gpu_memory_total_bytes": 100.0}),
        (set(), {}),
        ({"9"}, {}),
        ({"1", "2", "9"}, {"gpu": pytest.approx(0.5), "gpu_memory_bytes": 23.0, "gpu_memory_total_bytes": 200.0}),
        (None, {"gpu": pytest.approx(0.4), "gpu_memory_bytes": 33.0, "gpu_memory_total_bytes": 300.0}),
    ],
    ids=["its own", "a part of one", "none", "one that is not there", "two here, one elsewhere", "not known"],
)
def test_a_node_shows_the_gpus_that_its_learner_uses(
    nvml: Callable[[Any], None], tmp_path: Path, cards: set[str] | None, expected: dict[str, float]
) -> None:
    nvml(fake_nvml(3))
    found = None if cards is None else frozenset(cards)
    assert gpus(found) == expected
    sample = SystemProbe(tmp_path, lambda: found).sample()
    assert {name: value for name, value in sample.items() if name.startswith("gpu")} == expected


def test_without_a_card_of_its_own_nothing_is_asked(nvml: Callable[[Any], None]) -> None:
    asked: list[str] = []
    module = fake_nvml(1)
    module.nvmlInit = lambda: asked.append("init")
    nvml(module)
    assert gpus(frozenset()) == {}
    assert asked == []


@pytest.mark.parametrize(
    ("trainer", "unknown"),
    [({}, None), ({"trainer": "command", "trainer_command": "sbatch x"}, set())],
    ids=["here", "perhaps elsewhere"],
)
def test_the_cards_are_those_of_the_loaded_learner(
    tmp_path: Path, trainer: dict[str, Any], unknown: set[str] | None
) -> None:
    """All cards of this machine are shown only if a learner computes in it without saying where."""
    agent: Any = SimpleNamespace(session=SimpleNamespace(backend=None))
    found = _reporters(EdgeSettings(send_logs="off", state_dir=tmp_path, **trainer), agent)[0]
    assert isinstance(found, SystemReporter)
    assert found._probe._cards() == frozenset()
    for devices, cards in (
        ((ProcessDevice("cuda:0", "1"), ProcessDevice("cuda:1", "2")), {"1", "2"}),
        ((ProcessDevice("", None),), unknown),
    ):
        agent.session.backend = SimpleNamespace(compute=LearnerDevices(devices))
        assert found._probe._cards() == cards


def test_without_gpus_and_without_the_library_nothing_is_shown(nvml: Callable[[Any], None]) -> None:
    broken = fake_nvml(1)
    broken.nvmlInit = lambda: (_ for _ in ()).throw(broken.NVMLError("no driver"))
    for module in (fake_nvml(0), broken, None):
        nvml(module)
        assert gpus(None) == {}


def test_without_a_driver_the_library_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(system.ctypes, "CDLL", missing)
    assert gpus(None) == {}
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

    reporter = SystemReporter(SystemProbe(tmp_path, no_card), 0.01, open_client, credential)
    reporter.start()
    assert enough.wait(PATIENCE_S)
    reporter.stop()
    assert taken[0]["memory_total_bytes"] > 0
