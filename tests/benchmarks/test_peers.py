"""The comparison with other frameworks, without running one: its table, its command line, a framework that fails."""

import importlib
import sys
from types import ModuleType

import pytest

from tests.conventions.sources import ROOT

FLOOR = {"framework": "floor", "nodes": 2, "megabytes": 10.0, "rounds": 5, "round_s": 0.02, "server_s": 0.01}
FLOOR |= {"client_s": 0.005, "server_mb": 100.0}
SHOAL = FLOOR | {"framework": "shoal", "round_s": 0.2, "server_s": 0.04}
FAILED = {"framework": "flower", "nodes": 2, "megabytes": 10.0, "error": "pip: no such package"}


def benchmark(name: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a benchmark's module; its folder is where it finds its parts."""
    monkeypatch.syspath_prepend(str(ROOT / folder))
    module = importlib.import_module(name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for loaded, one in list(sys.modules.items()):
        if (getattr(one, "__file__", None) or "").startswith(str(ROOT / "benchmarks")):
            monkeypatch.delitem(sys.modules, loaded)
    return module


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return benchmark("run", "benchmarks/peers", monkeypatch)


def test_ratios_are_to_the_floor_of_the_same_cell(run: ModuleType) -> None:
    other = FLOOR | {"nodes": 10, "round_s": 2.0}
    floor, shoal, failed, larger = run.table([FLOOR, SHOAL, FAILED, other])
    assert (floor["times_floor"], larger["times_floor"]) == (1.0, 1.0)
    assert (shoal["times_floor"], shoal["server_times_floor"]) == (10.0, 4.0)
    assert failed["error"] == "pip: no such package"
    assert failed["round_s"] == failed["times_floor"] == "-"


def test_without_a_floor_there_is_no_ratio(run: ModuleType) -> None:
    assert run.table([SHOAL])[0]["times_floor"] == "-"


def test_the_command_line_names_cells(run: ModuleType) -> None:
    options = run.read_options(["--only", "floor", "shoal", "--nodes", "1", "64", "--megabytes", "1", "1000"])
    assert options.only == ["floor", "shoal"]
    assert run.cells(options) == [(1, 1.0), (64, 1.0), (1, 1000.0)]  # 64 GB are too many
    with pytest.raises(SystemExit):
        run.read_options(["--only", "unknown"])


def test_a_framework_that_cannot_be_installed_tells_so(run: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, _: object) -> str:
        raise RuntimeError(f"pip: no\n {name}")

    monkeypatch.setitem(run.output_of.__globals__, "python_of", refuse)
    found = run.rounds_of("flower", 2, 10.0, run.read_options([]))
    assert found == {"framework": "flower", "nodes": 2, "megabytes": 10.0, "error": "pip: no flower"}


def test_simulation_has_ratios_of_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = benchmark("simulation", "benchmarks", monkeypatch)
    rates = {"shoal.simulate": 1500.0, "plain torch loop": 300.0, "pfl": 500.0, "flower": "pip: no", "learners": 9.0}
    rows = simulation.table("mlp", 100, "equal", rates)
    assert [row["times_pfl"] for row in rows] == [3.0, 0.6, 1.0, "-", "-"]
    assert [row["times_loop"] for row in rows][:2] == [5.0, 1.0]
    assert {row["times_stacked"] for row in rows} == {"-"}
    assert rows[3]["per_cpu_s"] == "pip: no"
