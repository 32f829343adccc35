"""Imports only go down, and the core touches nothing but its arguments.

The direction is written as contracts in pyproject.toml, which import-linter checks; what the core may use is an
allowance here, because a list of what it may not use is never complete.
"""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conventions.sources import PACKAGES, PARENTS, PURE, ROOT, plant, trees

# No clock, socket, thread, file, environment or global randomness among these.
PURE_MODULES = {
    *("__future__", "abc", "base64", "bisect", "collections", "copy", "dataclasses", "enum", "fractions", "functools"),
    *("hashlib", "heapq", "itertools", "json", "math", "numbers", "operator", "random", "re", "statistics", "string"),
    *("struct", "textwrap", "types", "typing", "zlib"),
    *("annotated_types", "numpy", "shoal"),
}
PURE_RANDOM = {
    "random": {"Random"},
    "numpy.random": {"BitGenerator", "Generator", "PCG64", "Philox", "SeedSequence", "default_rng"},
}
IMPURE_CALLS = {"__import__", "breakpoint", "eval", "exec", "hash", "id", "input", "open", "print"}
LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))"


def broken_contracts(root: Path) -> str:
    """What import-linter says of the tree's contracts; empty where all are kept."""
    places = os.pathsep.join(str(root / parent) for parent in PARENTS)
    environment = {**os.environ, "PYTHONPATH": places}
    command = [sys.executable, "-c", LINT]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def unplaced_modules(root: Path) -> list[str]:
    """Modules of the library that the layers don't mention: nothing would say what they may lean on."""
    pyproject = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = pyproject["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    placed = {name.strip(" ()") for layer in layers for name in layer.replace("|", ":").split(":")}
    there = {f"shoal.{name.split('/')[1].removesuffix('.py')}" for name, _ in trees(root, "shoal")}
    return sorted(there - placed - {"shoal.__init__", "shoal.__main__"})


def impurities(root: Path) -> list[str]:
    """Each place where a pure package could touch the world: its clock, files, threads or chance."""
    return [f"{name}:{line}: {what}" for name, tree in trees(root, *PURE) for line, what in impure_nodes(tree)]


def impure_nodes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what) of each impurity in one file."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                faults = [f"imports {alias.name}" for alias in names if not is_pure(alias.name)]
            case ast.ImportFrom(module, names):
                faults = [] if is_pure(module or "") else [f"imports {module}"]
                faults += [chance for alias in names for chance in global_chance(module or "", alias.name)]
            case ast.Attribute(value, name):
                faults = global_chance(ast.unparse(value), name)
            case ast.Call():
                faults = impure_call(node)
            case _:
                continue
        yield from ((node.lineno, fault) for fault in faults)


def is_pure(module: str) -> bool:
    """Whether the pure packages may import this module."""
    return module.partition(".")[0] in PURE_MODULES


def global_chance(module: str, name: str) -> list[str]:
    """What is wrong with taking this name from this module, if it draws from a generator that all share."""
    allowed = PURE_RANDOM.get(module.replace("np.", "numpy.", 1))
    return [] if allowed is None or name in allowed else [f"uses {module}.{name}, which is global randomness"]


def impure_call(node: ast.Call) -> list[str]:
    """What is wrong with this call."""
    called = ast.unparse(node.func)
    faults = [f"calls {called}()"] if called in IMPURE_CALLS else []
    if called.rpartition(".")[2] in {"Random", "default_rng", "SeedSequence"} and not (node.args or node.keywords):
        faults.append(f"calls {called}() without a seed")
    return faults


def test_the_contracts_are_kept() -> None:
    assert broken_contracts(ROOT) == ""


def test_every_module_has_its_layer() -> None:
    assert unplaced_modules(ROOT) == []


def test_the_core_is_pure() -> None:
    assert impurities(ROOT) == []


TREE = "from shoal.core.model import tree\n"
KEPT = {
    **{f"{package}/__init__.py": "" for package in PACKAGES},
    **{
        f"shoal/{name}/__init__.py": ""
        for name in (
            *(
                "algorithms",
                "cli",
                "client",
                "conformance",
                "core",
                "core/model",
                "filters",
                "jobs",
                "learn",
                "loop",
                "mixing",
                "peering",
                "peering/http",
            ),
            *(
                "recovery",
                "results",
                "runtime",
                "runtime/http",
                "runtime/http/server",
                "schedules",
                "selection",
                "serving",
                "sim",
                "trust",
                "validation",
            ),
            "wire",
        )
    },
    **{
        f"shoal/{name}.py": ""
        for name in (
            *("extras", "lightning", "transformers", "memory", "model_file", "plugins", "progress", "configuration"),
            *("split_simulation", "vertical_simulation"),
        )
    },
    "shoal/core/model/tree.py": "import numpy\n",
    "shoal/core/model/aggregation.py": TREE,
    "shoal/algorithms/fedavg.py": TREE,
    "shoal/algorithms/fedprox.py": TREE,
    "shoal/mixing/pairwise.py": TREE,
    "shoal/validation/strict_json.py": "import json\n",
    "shoal/wire/codec.py": f"from shoal.validation import strict_json\n{TREE}",
    "shoal/wire/peer_codec.py": "from shoal.wire import codec\n",
    "shoal/simulation.py": "from shoal.wire import codec\n",
    "shoal/trust/keys.py": f"import cryptography\n{TREE}",
    "shoal/trust/intersection.py": "import cryptography\n",
    "shoal/runtime/http/client.py": "import urllib3\nimport shoal\nfrom shoal.wire import codec\n",
    "shoal/runtime/http/link_connections.py": "import urllib3\n",
    "shoal/cli/app.py": "def main():\n    import shoal_coordinator.api.app\n    import shoal_edge_client\n",
    **{f"coordinator/shoal_coordinator/{name}/__init__.py": "" for name in ("api", "composition", "jobs", "nodes")},
    "coordinator/shoal_coordinator/jobs/good.py": "",
    "coordinator/shoal_coordinator/jobs/worse.py": "from shoal_coordinator.jobs import good\n",
    "shoal/core/server/__init__.py": "",
    "shoal/core/server/hub.py": TREE,
    "coordinator/shoal_coordinator/api/app.py": (
        "import fastapi\nimport starlette\nimport uvicorn\nfrom shoal.wire import codec\n"
        "from shoal_coordinator.api import dependencies\n"
    ),
    "coordinator/shoal_coordinator/api/dependencies.py": "from shoal_coordinator.composition import coordinator\n",
    "coordinator/shoal_coordinator/api/openapi.py": "from shoal_coordinator.composition import coordinator\n",
    "coordinator/shoal_coordinator/composition/coordinator.py": "",
    "coordinator/shoal_coordinator/main.py": "from shoal_coordinator.composition import coordinator\n",
    "shoal/peering/http/admin_routes.py": "import fastapi\n",
    "shoal/peering/http/peer_app.py": (
        "import fastapi\nfrom shoal.peering.http import admin_routes\nfrom shoal.wire import peer_codec\n"
    ),
    "shoal/serving/level_app.py": "import starlette\n",
    "shoal/serving/prediction_app.py": "import starlette\n",
    "peer/shoal_peer/process.py": "from shoal.peering.http import peer_app\n",
    "edge_client/shoal_edge_client/agent.py": "from shoal.runtime.http import client\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree that keeps every contract of the real pyproject.toml."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return plant(tmp_path, KEPT)


def test_a_tree_that_keeps_the_contracts_passes(tree: Path) -> None:
    assert broken_contracts(tree) == ""
    assert unplaced_modules(tree) == []
    assert impurities(tree) == []


@pytest.mark.parametrize(
    ("path", "source", "contract"),
    [
        ("shoal/core/bad.py", "from shoal.wire import codec\n", "imports only go down"),
        ("shoal/core/bad.py", "from shoal.algorithms import fedavg\n", "imports only go down"),
        ("shoal/wire/codec.py", "def late():\n    from shoal import simulation\n", "imports only go down"),
        ("shoal/simulation.py", "import shoal_edge_client\n", "imports only go down"),
        ("edge_client/shoal_edge_client/bad.py", "import shoal_coordinator.api.app\n", "imports only go down"),
        ("coordinator/shoal_coordinator/bad.py", "import shoal_edge_client\n", "imports only go down"),
        (
            "coordinator/shoal_coordinator/jobs/bad.py",
            "import shoal_coordinator.api.app\n",
            "in the coordinator only go",
        ),
        (
            "coordinator/shoal_coordinator/nodes/bad.py",
            "import shoal_coordinator.jobs.good\n",
            "in the coordinator only go",
        ),
        (
            "coordinator/shoal_coordinator/jobs/good.py",
            "from shoal_coordinator.jobs import worse\n",
            "needs one that needs it",
        ),
        ("shoal/core/model/bad.py", "from shoal.core.server import hub\n", "in the core only go down"),
        ("shoal/__init__.py", "import shoal_edge_client\n", "imports only go down"),
        ("coordinator/shoal_coordinator/bad.py", "import shoal.cli\n", "imports only go down"),
        ("shoal/algorithms/fedprox.py", "from shoal.algorithms import fedavg\n", "blind to their siblings"),
        ("shoal/mixing/bad.py", "from shoal.mixing import pairwise\n", "blind to their siblings"),
        ("shoal/core/bad.py", "from shoal.mixing import pairwise\n", "imports only go down"),
        ("shoal/schedules/bad.py", "from shoal.algorithms import fedavg\n", "imports only go down"),
        ("shoal/simulation.py", "import fastapi\n", "in the HTTP servers of shoal alone"),
        ("edge_client/shoal_edge_client/bad.py", "import sqlalchemy.orm\n", "the coordinator alone"),
        ("peer/shoal_peer/bad.py", "import fastapi\n", "in the HTTP servers of shoal alone"),
        ("shoal/simulation.py", "import requests\n", "no other client of HTTP"),
        (
            "coordinator/shoal_coordinator/api/bad.py",
            "from shoal_coordinator.composition.coordinator import Coordinator\n",
            "know the class Coordinator",
        ),
        ("peer/shoal_peer/bad.py", "import shoal_edge_client\n", "imports only go down"),
        ("coordinator/shoal_coordinator/bad.py", "import urllib3\n", "speaks HTTP"),
        ("shoal/runtime/worker_pump.py", "from urllib3 import PoolManager\n", "speaks HTTP"),
        ("coordinator/shoal_coordinator/bad.py", "from cryptography import x509\n", "cryptography appears where keys"),
        ("shoal/trust/papers.py", "from shoal.wire import codec\n", "trust leans on"),
        ("dashboard/shoal_dashboard/bad.py", "import shoal\n", "imports nothing"),
        ("shoal/core/model/tree.py", "from shoal.core.model import aggregation\n", "needs one that needs it"),
    ],
)
def test_broken_contracts_are_found(tree: Path, path: str, source: str, contract: str) -> None:
    plant(tree, {path: source})
    said = " ".join(broken_contracts(tree).split())
    assert "BROKEN" in said
    assert contract in said.partition("Broken contracts")[2]


def test_unplaced_modules_are_found(tree: Path) -> None:
    plant(tree, {"shoal/attic.py": "", "shoal/cellar/__init__.py": ""})
    assert unplaced_modules(tree) == ["shoal.attic", "shoal.cellar"]


@pytest.mark.parametrize(
    ("source", "what"),
    [
        *((f"import {name}\n", f"imports {name}") for name in ("time", "os", "socket", "asyncio", "threading")),
        *((f"from {name} import x\n", f"imports {name}") for name in ("logging", "datetime", "pathlib", "uuid")),
        ("import os.path\n", "imports os.path"),
        ("def late():\n    import secrets\n", "imports secrets"),
        ("import torch\n", "imports torch"),
        ("import random\nrandom.shuffle([])\n", "uses random.shuffle"),
        ("import random\nrandom.Random()\n", "calls random.Random() without a seed"),
        ("from random import choice\n", "uses random.choice"),
        ("import numpy as np\nnp.random.seed(1)\n", "uses np.random.seed"),
        ("import numpy as np\nnp.random.default_rng()\n", "calls np.random.default_rng() without a seed"),
        ("from numpy.random import rand\n", "uses numpy.random.rand"),
        ("open('x')\n", "calls open()"),
        ("hash('x')\n", "calls hash()"),
        ("print('x')\n", "calls print()"),
    ],
)
@pytest.mark.parametrize("package", PURE)
def test_impurities_are_found(tmp_path: Path, package: str, source: str, what: str) -> None:
    plant(tmp_path, {f"{package}/bad.py": source, "shoal/wire/codec.py": source})
    (found,) = impurities(tmp_path)
    assert found.startswith(f"{package}/bad.py:")
    assert what in found


def test_seeded_randomness_is_pure(tmp_path: Path) -> None:
    source = "import random\nimport numpy as np\nrandom.Random(1).shuffle([])\nnp.random.default_rng(1).random()\n"
    assert impurities(plant(tmp_path, {"shoal/core/fine.py": source})) == []
