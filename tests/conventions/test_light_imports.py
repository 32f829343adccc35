"""Nobody waits for torch, FastAPI or a database who doesn't use them: `shoal --help` answers at once."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.house.sources import ROOT, plant

HEAVY = {"alembic", "cryptography", "fastapi", "sqlalchemy", "starlette", "torch", "uvicorn"}
HELP = """
import sys
from shoal.cli import main
sys.argv = ["shoal", "--help"]
try:
    main()
except SystemExit as end:
    assert end.code in (0, None), end.code
"""
JOBS = """
import sys
from shoal.cli import main
sys.argv = ["shoal", "jobs", "--url", "http://127.0.0.1:1"]
try:
    main()
except SystemExit as end:
    assert end.code == 3, end.code
"""
REPORT = "\nimport json, sys; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"


def heavy_modules(root: Path, code: str) -> tuple[set[str], str]:
    """Run code in a fresh interpreter in this tree; the heavy modules it loaded, and what it printed."""
    loaded, said = modules(root, code)
    return HEAVY & loaded, said


def modules(root: Path, code: str) -> tuple[set[str], str]:
    """Run code in a fresh interpreter in this tree; all modules it loaded, and what it printed."""
    started = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", code + REPORT], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - started
    assert done.returncode == 0, done.stderr
    sys.stdout.write(f"{code.strip().splitlines()[-1]}: {seconds:.3f} s\n")
    return set(json.loads(done.stderr.splitlines()[-1])), done.stdout


@pytest.mark.parametrize("code", ["import shoal", "import shoal_edge_client", "import shoal_peer", "import shoal.cli"])
def test_importing_is_light(code: str) -> None:
    assert heavy_modules(ROOT, code)[0] == set()


def test_help_is_light() -> None:
    loaded, said = heavy_modules(ROOT, HELP)
    assert loaded == set()
    assert "Usage" in said


def test_a_command_loads_what_it_needs_and_no_more() -> None:
    """numpy is for models, and pygments for httpx's own command line."""
    assert modules(ROOT, HELP)[0].isdisjoint({"httpx", "numpy", "pydantic", "shoal.cli.jobs", "shoal.cli.run"})
    loaded, said = modules(ROOT, JOBS)
    assert {"httpx", "shoal.cli.jobs"} <= loaded
    assert loaded.isdisjoint(HEAVY | {"numpy", "pygments", "pydantic_settings", "shoal.cli.run", "shoal.wire"}), said


@pytest.mark.parametrize("name", sorted(HEAVY))
def test_heavy_imports_are_found(tmp_path: Path, name: str) -> None:
    plant(tmp_path, {"shoal/__init__.py": f"import {name}\n", f"{name}.py": ""})
    assert heavy_modules(tmp_path, "import shoal")[0] == {name}
