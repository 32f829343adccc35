"""Imported names and linked headings in documents exist."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.tables import ROOT, documents
from tests.docs.test_documents import blocks

PACKAGES = ("shoal", "shoal_coordinator", "shoal_edge_client", "shoal_peer")
ANCHOR = re.compile(r"\]\(([^):]*)#([^)]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
NAMED = re.compile(r'<a id="([^"]+)"></a>')
FENCED = re.compile(r"```.*?```", re.DOTALL)


def missing_names(code: str) -> Iterator[str]:
    """Yield the names that a piece of Python imports from shoal's packages and that they lack."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            module = importlib.import_module(node.module or "")
            yield from (f"{node.module}.{alias.name}" for alias in node.names if not hasattr(module, alias.name))


def heading_anchors(text: str) -> set[str]:
    """Return the anchors that a forge gives to a document's headings, and those that it gives itself."""
    headings = (re.sub(r"\]\([^)]*\)", "", found) for found in HEADING.findall(FENCED.sub("", text)))
    return set(NAMED.findall(text)) | {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    }


def broken_anchors(path: Path, text: str) -> list[str]:
    """Return the links of a document to headings that are not there."""
    targets = ((path.parent / file if file else path, anchor) for file, anchor in ANCHOR.findall(FENCED.sub("", text)))
    return [
        f"{target.name}#{anchor}" for target, anchor in targets if anchor not in heading_anchors(target.read_text())
    ]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imported_names_exist(path: Path) -> None:
    assert [name for block in blocks(path, "python") for name in missing_names(block)] == []


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_linked_headings_exist(path: Path) -> None:
    assert broken_anchors(path, path.read_text()) == []


def test_what_is_missing_is_found(tmp_path: Path) -> None:
    assert list(missing_names("import os\nfrom shoal import simulate, simulat\n")) == ["shoal.simulat"]
    page = tmp_path / "page.md"
    page.write_text("# A `job`, run\n\n```sh\n# no heading\n```\n[here](#a-job-run) [there](page.md#no-heading)\n")
    assert broken_anchors(page, page.read_text()) == ["page.md#no-heading"]
