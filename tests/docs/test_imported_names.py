"""The names that examples in documents import exist."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.tables import ROOT, documents
from tests.docs.test_documents import blocks

PACKAGES = ("shoal", "shoal_coordinator", "shoal_edge_client", "shoal_peer")


def missing_names(code: str) -> Iterator[str]:
    """Yield the names that a piece of Python imports from shoal's packages and that they lack."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            module = importlib.import_module(node.module or "")
            yield from (f"{node.module}.{alias.name}" for alias in node.names if not hasattr(module, alias.name))


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imported_names_exist(path: Path) -> None:
    assert [name for block in blocks(path, "python") for name in missing_names(block)] == []


def test_a_missing_name_is_found() -> None:
    assert list(missing_names("import os\nfrom shoal import simulate, simulat\n")) == ["shoal.simulat"]
