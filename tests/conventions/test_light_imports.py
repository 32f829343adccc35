"""Nobody waits for torch, FastAPI or a database who doesn't use them: `shoal --help` answers at once."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conventions.sources import ROOT, plant

HEAVY = {"alembic", "cryptography", "fastapi", "sqlalchemy", "starlette", "torch", "uvicorn"}
PACKAGES = ("coordinator", "edge_client", "peer", "dashboard")
"""Folders of this tree's other packages: else those of the installation would be imported."""

UNUSED = {"alembic", "torch", "psycopg", "asyncpg", "boto3"}
"""A coordinator loads these when it makes tables, evaluates models, or uses PostgreSQL or S3."""

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
BUILT = """
from fastapi.routing import APIRoute, APIRouter
from shoal_coordinator.api.app import create_app
print(sum(not isinstance(r, APIRoute) for r in create_app(None).routes if hasattr(r, "original_router")))
from shoal.runtime.http.server.problem_documents import Problem
from shoal_coordinator.api.routes import jobs
fields = [field for route in jobs.router.routes for field in route.response_fields.values()]
print(sum(field.field_info.annotation is Problem for field in fields))
"""
REPORT = "\nimport json, sys; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"


def heavy_modules(root: Path, code: str) -> tuple[set[str], str]:
    """Run code in a fresh interpreter in this tree; the heavy modules it loaded, and what it printed."""
    loaded, said = modules(root, code)
    return HEAVY & loaded, said


def modules(root: Path, code: str) -> tuple[set[str], str]:
    """Run code in a fresh interpreter in this tree; all modules it loaded, and what it printed."""
    started = time.perf_counter()
    parts = (root, *(root / name for name in PACKAGES))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, parts))}
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
    """numpy is for models."""
    assert modules(ROOT, HELP)[0].isdisjoint(
        {"urllib3", "numpy", "pydantic", "shoal.cli.commands.jobs", "shoal.cli.commands.run"}
    )
    loaded, said = modules(ROOT, JOBS)
    assert {"urllib3", "shoal.cli.commands.jobs"} <= loaded
    assert loaded.isdisjoint(
        HEAVY | {"numpy", "pygments", "pydantic_settings", "shoal.cli.commands.run", "shoal.wire.codec"}
    ), said


def test_a_coordinator_loads_no_more_than_it_uses() -> None:
    assert UNUSED & modules(ROOT, "import shoal_coordinator.main")[0] == set()


def test_an_edge_client_loads_no_hub() -> None:
    """It reads job files, whose tables name parts of the hub."""
    loaded = modules(ROOT, "import shoal_edge_client.process")[0]
    assert [name for name in loaded if name.startswith("shoal.core.server.")] == []
    assert "typer" not in loaded


def test_a_coordinator_builds_its_routes_once_and_no_validator_of_problems() -> None:
    """FastAPI builds included routers anew at the first request: 0.3 s, in which no node is answered. Each route has
    some ten kinds of problems: 1,000 validators took 0.2 s of a start.
    """
    _, said = modules(ROOT, BUILT)
    assert said.split()[-2:] == ["0", "0"], said


@pytest.mark.parametrize("name", sorted(HEAVY))
def test_heavy_imports_are_found(tmp_path: Path, name: str) -> None:
    plant(tmp_path, {"shoal/__init__.py": f"import {name}\n", f"{name}.py": ""})
    assert heavy_modules(tmp_path, "import shoal")[0] == {name}
