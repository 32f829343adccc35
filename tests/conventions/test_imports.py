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

from tests.house.sources import PACKAGES, PARENTS, PURE, ROOT, plant, trees

# No clock, socket, thread, file, environment or global randomness among these.
PURE_MODULES = {
    *("__future__", "abc", "base64", "bisect", "collections", "copy", "dataclasses", "enum", "fractions", "functools"),
    *("hashlib", "heapq", "itertools", "json", "math", "numbers", "operator", "random", "re", "statistics", "string"),
    *("struct", "textwrap", "types", "typing", "zlib"),
    *("numpy", "shoal"),
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


KEPT = {
    **{f"{package}/__init__.py": "" for package in PACKAGES},
    "shoal/__init__.py": "def join():\n    import shoal_edge_client\n",
    "shoal/core/__init__.py": "",
    "shoal/core/tree.py": "import numpy\n",
    "shoal/core/sums.py": "from shoal.core import tree\n",
    "shoal/algorithms/__init__.py": "",
    "shoal/algorithms/fedavg.py": "from shoal.core import tree\n",
    "shoal/algorithms/fedprox.py": "from shoal.core import tree\n",
    "shoal/schedules/__init__.py": "",
    "shoal/filters/__init__.py": "",
    "shoal/mixing/__init__.py": "",
    "shoal/selection/__init__.py": "",
    "shoal/mixing/pairwise.py": "from shoal.core import tree\n",
    "shoal/strict_json.py": "import json\n",
    "shoal/wire.py": "from shoal import strict_json\nfrom shoal.core import tree\n",
    **{
        f"shoal/{name}.py": ""
        for name in (
            "checkpoint",
            "extras",
            "compare",
            "heads",
            "learn",
            "misfits",
            "mistakes",
            "model_file",
            "plugins",
            "presets",
            "progress",
            "record",
            "result",
            "settings",
            "sim",
            "spec",
        )
    },
    "shoal/simulation.py": "from shoal import wire\n",
    "shoal/trust/__init__.py": "",
    "shoal/trust/keys.py": "import cryptography\nfrom shoal.core import tree\n",
    "shoal/runtime/__init__.py": "",
    "shoal/runtime/http.py": "import httpx\nfrom shoal import wire\n",
    "shoal/cli/__init__.py": "def main():\n    import shoal_coordinator.app\n    import shoal_edge_client\n",
    "shoal/peer_wire.py": "from shoal import wire\n",
    "coordinator/shoal_coordinator/app.py": "import fastapi\nfrom shoal import wire\n",
    "peer/shoal_peer/words.py": "import fastapi\n",
    "peer/shoal_peer/app.py": "import fastapi\nfrom shoal_peer import words\nfrom shoal import peer_wire\n",
    "edge_client/shoal_edge_client/__init__.py": "from shoal.runtime import http\n",
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
        ("shoal/core/bad.py", "from shoal import wire\n", "imports only go down"),
        ("shoal/core/bad.py", "from shoal.algorithms import fedavg\n", "imports only go down"),
        ("shoal/wire.py", "def late():\n    from shoal import simulation\n", "imports only go down"),
        ("shoal/simulation.py", "import shoal_edge_client\n", "imports only go down"),
        ("edge_client/shoal_edge_client/bad.py", "import shoal_coordinator.app\n", "imports only go down"),
        ("coordinator/shoal_coordinator/bad.py", "import shoal_edge_client\n", "imports only go down"),
        ("coordinator/shoal_coordinator/bad.py", "import shoal.cli\n", "imports only go down"),
        ("shoal/algorithms/fedprox.py", "from shoal.algorithms import fedavg\n", "blind to their siblings"),
        ("shoal/mixing/bad.py", "from shoal.mixing import pairwise\n", "blind to their siblings"),
        ("shoal/core/bad.py", "from shoal.mixing import pairwise\n", "imports only go down"),
        ("shoal/schedules/bad.py", "from shoal.algorithms import fedavg\n", "imports only go down"),
        ("shoal/simulation.py", "import fastapi\n", "the coordinator alone"),
        ("edge_client/shoal_edge_client/bad.py", "import sqlalchemy.orm\n", "the coordinator alone"),
        ("peer/shoal_peer/bad.py", "import fastapi\n", "the coordinator alone"),
        ("peer/shoal_peer/bad.py", "import shoal_edge_client\n", "imports only go down"),
        ("coordinator/shoal_coordinator/bad.py", "import httpx\n", "speaks HTTP"),
        ("shoal/runtime/pump.py", "from httpx import Client\n", "speaks HTTP"),
        ("coordinator/shoal_coordinator/bad.py", "from cryptography import x509\n", "one module holds keys"),
        ("shoal/trust/papers.py", "from shoal import wire\n", "trust leans on"),
        ("dashboard/shoal_dashboard/bad.py", "import shoal\n", "imports nothing"),
        ("shoal/core/tree.py", "from shoal.core import sums\n", "needs one that needs it"),
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
    plant(tmp_path, {f"{package}/bad.py": source, "shoal/wire.py": source})
    (found,) = impurities(tmp_path)
    assert found.startswith(f"{package}/bad.py:")
    assert what in found


def test_seeded_randomness_is_pure(tmp_path: Path) -> None:
    source = "import random\nimport numpy as np\nrandom.Random(1).shuffle([])\nnp.random.default_rng(1).random()\n"
    assert impurities(plant(tmp_path, {"shoal/core/fine.py": source})) == []
