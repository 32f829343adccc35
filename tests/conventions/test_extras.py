"""The base works without torch, and neither the command line nor the coordinator imports it."""

import json
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

from shoal.extras import install_hint
from tests.conventions.sources import PACKAGES, ROOT, texts

# The modules that need torch: they hold TorchLearner, its parts, and ready learners.
TORCH = {
    *("data.batches", "data.stream", "digits", "mnist", "models", "seeds"),
    *("shoal.lightning", "shoal.loop.module_model", "shoal.split_simulation", "shoal.vertical_simulation"),
    "shoal.serving.onnx_file",
    "shoal_edge_client.split.split_agent",
    *(f"shoal.serving.{name}" for name in ("cascade_pump", "inference", "served_level")),
    *(f"split.{name}" for name in ("cut_choice", "cutting", "part_legs", "split_job", "trained_part")),
    *(f"split.{name}" for name in ("vertical_job", "vertical_legs", "vertical_network")),
    *(f"lightning.{name}" for name in ("lightning_learner", "task_hooks", "task_loader")),
    *(f"exits.{name}" for name in ("device_fusion", "exit_network", "joint_training", "level_answers")),
    *("data.divided", "pipeline.engine", "pipeline.plan", "site.divided_module", "site.ranks"),
    *("shards.dense_layers", "shards.plan", "shards.sharded_site", "shards.units", "site.shards"),
    *(f"growth.{name}" for name in ("chain", "growing_learner", "net2net", "units")),
    *("text.gpt", "text.text_learner"),
    *(f"hf.{name}" for name in ("adapters", "checks", "hf_learner", "task_batches", "task_trainer")),
    "stacked.device_stack",
    "stacked.row_draws",
    "stacked.row_module",
    *(
        f"stacked.stacked_{name}"
        for name in ("batches", "corrections", "evaluation", "optimizer", "tasks", "training", "trees")
    ),
    *(
        f"training.{name}"
        for name in (
            "corrections",
            "descent",
            "devices",
            "distill",
            "measures",
            "module_learner",
            "module_pool",
            "passes",
            "tensor_roles",
            "torch_learner",
            "weights",
        )
    ),
}
WITHOUT = """
import importlib, json, pkgutil, sys
packages, *missing = sys.argv[1:]
class Hiding:  # None in sys.modules would be found there by those who only look whether torch is loaded
    def __init__(self, inner):
        self.inner = inner
    def find_spec(self, name, path=None, target=None):
        return None if name in missing else self.inner.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.inner, name)
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
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


HUGGING_FACE = """
import importlib, sys
from shoal.core.errors import ShoalError
for package, name in (("transformers", "HFLearner"), ("peft", "save_adapter")):
    sys.modules[package] = None
    try:
        getattr(importlib.import_module("shoal.learn.hf"), name)
    except ShoalError as error:
        print(error.message, error.hint, sep=" | ")
    del sys.modules[package]
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


IMPORTED_AS = {
    "psycopg[binary]": "psycopg",
    "sqlalchemy[asyncio]": "sqlalchemy",
    "nvidia-ml-py": "pynvml",
    "transformers[torch]": "transformers",
    "pillow": "PIL",
    "scikit-learn": "sklearn",
    "opentelemetry-sdk": "opentelemetry.sdk",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
}


def test_every_package_that_is_asked_for_is_used() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: asked for name, asked in project["optional-dependencies"].items() if name not in ("test", "dev")}
    asked = {re.split(r"[><=;]", line)[0].strip() for line in [*project["dependencies"], *chain(*extras.values())]}
    modules = {IMPORTED_AS.get(name, name).replace("-", "_") for name in asked if not name.startswith("shoal[")}
    text = "\n".join(text for path, text in texts(ROOT) if path.startswith(PACKAGES) and path.endswith(".py"))
    used = r"""(^\s*(import|from) |import_module\(")NAME\b"""
    unused = {name for name in modules if not re.search(used.replace("NAME", re.escape(name)), text, re.MULTILINE)}
    assert unused == {"aiosqlite"}, "SQLAlchemy loads that one by its name"


def test_only_torch_learners_need_torch() -> None:
    every = "shoal shoal_coordinator shoal_edge_client shoal_peer shoal_dashboard"
    assert {name.removeprefix("shoal.learn.") for name in lacking(every, "torch")["torch"]} == {
        *TORCH,
        "shoal.serving.level_app",
        "shoal_coordinator.split.split_runner",
    }


SKLEARN = {"estimators.families", "estimators.sklearn_learner"}


def test_the_base_needs_no_extra() -> None:
    """Without the extras it lacks learners on torch and scikit-learn, image folders, and HTTP servers of nodes."""
    others = ("torch", "cryptography", "fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "prometheus_client")
    found = lacking(
        "shoal shoal_edge_client",
        *others,
        "psycopg",
        "obstore",
        "botocore",
        "sklearn",
        "scipy",
        "PIL",
        "pyarrow",
        "xgboost",
    )
    assert {name.removeprefix("shoal.learn.") for name in found.pop("torch")} == TORCH
    assert {name.removeprefix("shoal.learn.") for name in found.pop("sklearn")} == SKLEARN
    assert found.pop("PIL") == ["shoal.learn.data.images"]
    of_peers = (
        "shoal.peering.",
        "shoal.runtime.http.server.",
        "shoal.serving.level_app",
        "shoal.serving.prediction_app",
        "shoal_edge_client.peering.",
        "shoal_edge_client.prepare",
    )
    assert [name for names in found.values() for name in names if not name.startswith(of_peers)] == []


def test_without_torch_it_is_said_how_to_get_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from torch import nn\n")
    said = [line.split(" | ") for line in python(LEARNERS, str(file)).splitlines()]
    assert [what for _, what, _ in said] == [
        f"{what} needs torch, which is not installed" for what in ("TorchLearner", "shoal.learn.digits", file)
    ]
    assert {(code, hint) for code, _, hint in said} == {("usage.extra", install_hint("torch"))}


def test_without_hugging_face_it_is_said_how_to_get_it() -> None:
    hint = f"which is not installed | {install_hint('hf')}"
    assert python(HUGGING_FACE).splitlines() == [
        f"HFLearner needs transformers, {hint}",
        f"save_adapter needs peft, {hint}",
    ]
