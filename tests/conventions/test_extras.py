"""The base works without torch, and neither the command line nor the coordinator imports it."""

import json
import subprocess
import sys
from pathlib import Path

from tests.house.sources import ROOT

# The modules that need torch: they hold TorchLearner, its parts, and ready learners.
TORCH = {
    *("batches", "descent", "devices", "digits", "distill", "measures", "mnist", "models", "seeds", "stacked"),
    *("stream", "torch_learner", "weights"),
}
WITHOUT = """
import importlib, json, pkgutil, sys
packages, *missing = sys.argv[1:]
for name in missing:
    sys.modules[name] = None
lacking = {}
def visit(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        lacking.setdefault(error.name.partition(".")[0], []).append(name)
        return
    for inner in pkgutil.iter_modules(getattr(module, "__path__", [])):
        if inner.name not in ("__main__", "versions", "env"):
            visit(f"{name}.{inner.name}")
for package in packages.split():
    visit(package)
print(json.dumps(lacking))
"""
LEARNERS = """
import sys
sys.modules["torch"] = None
from shoal.core.errors import ShoalError
from shoal.learn import load_learner
def said(make):
    try:
        make()
    except ShoalError as error:
        print(error.code, error.message, error.hint, sep=" | ")
def torch_learner():
    from shoal.learn import TorchLearner
said(torch_learner)
said(lambda: load_learner("shoal.learn.digits:held_out"))
said(lambda: load_learner(sys.argv[1]))
"""


def python(code: str, *arguments: str) -> str:
    """Run code in a fresh interpreter, from the clone; what it printed."""
    paths = [str(ROOT / folder) for folder in ("", "coordinator", "edge_client", "peer", "dashboard")]
    set_up = f"import sys; sys.path[:0] = {paths!r}\n"
    command = [sys.executable, "-c", set_up + code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def lacking(packages: str, *missing: str) -> dict[str, list[str]]:
    """The modules of packages that cannot be imported where others are missing, by what they lack."""
    found: dict[str, list[str]] = json.loads(python(WITHOUT, packages, *missing))
    return found


def test_only_torch_learners_need_torch() -> None:
    every = "shoal shoal_coordinator shoal_edge_client shoal_peer shoal_dashboard"
    assert {name.removeprefix("shoal.learn.") for name in lacking(every, "torch")["torch"]} == TORCH


def test_the_base_needs_no_extra() -> None:
    """Without the extras it lacks ready learners on torch, and what makes a node a peer."""
    others = ("torch", "cryptography", "fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "prometheus_client")
    found = lacking("shoal shoal_edge_client", *others, "psycopg", "obstore", "botocore", "sklearn", "scipy")
    assert {name.removeprefix("shoal.learn.") for name in found.pop("torch")} == TORCH
    of_peers = ("shoal_edge_client.peering.", "shoal_edge_client.prepare")
    assert [name for names in found.values() for name in names if not name.startswith(of_peers)] == []


def test_without_torch_it_is_said_how_to_get_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from torch import nn\n")
    said = [line.split(" | ") for line in python(LEARNERS, str(file)).splitlines()]
    assert [what for _, what, _ in said] == [
        f"{what} needs torch, which is not installed" for what in ("TorchLearner", "shoal.learn.digits", file)
    ]
    assert {(code, hint) for code, _, hint in said} == {("usage.extra", "pip install 'shoal[torch]'")}
