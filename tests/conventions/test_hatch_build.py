"""hatch_build.py: when the pages are built, with which Node, and what happens where that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hatch_build as hook
import shoal_dashboard


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """Sources of pages, not built."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.tsx").write_text("one")
    (tmp_path / "package.json").write_text("{}")
    return tmp_path


def built(pages: Path) -> Path:
    """As `build` leaves it."""
    (pages / hook.BUILT).mkdir(parents=True, exist_ok=True)
    (pages / hook.BUILT / "index.html").write_text("<!doctype html>")
    (pages / hook.BUILT / ".sources").write_text(hook.digest(pages) + "\n")
    return pages


@pytest.mark.parametrize(
    ("version", "enough"),
    [
        ("v20.18.3", False),
        ("v20.19.0", True),
        ("v21.20.0", False),
        ("v22.11.0", False),
        ("v22.12.0\n", True),
        ("v24.1.0", True),
        ("", False),
    ],
)
def test_only_a_node_that_the_build_tools_run_on_is_taken(version: str, enough: bool) -> None:
    assert hook.is_new_enough(version) is enough


def test_pages_are_built_again_when_a_source_changed_and_only_then(pages: Path) -> None:
    assert not hook.is_current(pages)
    built(pages)
    assert hook.is_current(pages)
    (pages / "src" / "some.test.ts").write_text("a test is no source")
    (pages / "node_modules").mkdir()
    (pages / "node_modules" / "left.js").write_text("nor is what npm leaves")
    assert hook.is_current(pages)
    (pages / "src" / "main.tsx").write_text("two")
    assert not hook.is_current(pages)


def test_a_file_that_was_renamed_is_a_change(pages: Path) -> None:
    built(pages)
    (pages / "src" / "main.tsx").rename(pages / "src" / "other.tsx")
    assert not hook.is_current(pages)


def test_pages_without_their_first_file_are_not_there(pages: Path) -> None:
    built(pages)
    (pages / hook.BUILT / "index.html").unlink()
    assert not hook.is_current(pages)


@pytest.mark.parametrize(("value", "asked"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_the_environment_can_ask_to_do_without(monkeypatch: pytest.MonkeyPatch, value: str | None, asked: bool) -> None:
    monkeypatch.delenv("SHOAL_SKIP_UI", raising=False)
    if value is not None:
        monkeypatch.setenv("SHOAL_SKIP_UI", value)
    assert hook.skipped() is asked


@pytest.mark.parametrize(
    ("target", "wish", "required"),
    [
        ("wheel", None, False),
        ("wheel", "0", True),
        ("wheel", "1", False),
        ("sdist", None, True),
        ("sdist", "0", True),
        ("sdist", "1", False),
    ],
)
def test_where_no_node_is_one_is_fetched_if_it_must_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, wish: str | None, required: bool
) -> None:
    """A wheel is built without pages then; a source distribution is not, so that no wheel from it needs Node."""
    built: list[Path] = []
    monkeypatch.setattr(hook, "installed_node", lambda: None)
    monkeypatch.setattr(hook, "build", built.append)
    monkeypatch.delenv("SHOAL_SKIP_UI", raising=False)
    if wish is not None:
        monkeypatch.setenv("SHOAL_SKIP_UI", wish)
    hooked: Any = hook.CustomBuildHook(str(tmp_path), {}, None, None, "", target)  # type: ignore[arg-type]
    assert hooked.dependencies() == ([hook.NODE_PACKAGE] if required else [])
    hooked.initialize("standard", {})
    assert built == ([tmp_path / "dashboard"] if required else [])


def test_without_any_node_the_error_says_what_to_do(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "installed_node", lambda: None)
    monkeypatch.setattr(hook, "packaged_node", lambda: None)
    with pytest.raises(hook.PagesError, match=r"no Node here .*SHOAL_SKIP_UI=1"):
        hook.build(pages)


def test_a_step_that_fails_shows_the_end_of_its_output(pages: Path, tmp_path: Path) -> None:
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho first; echo the reason; exit 3\n")
    npm.chmod(0o755)
    with pytest.raises(hook.PagesError, match=r"(?s)`npm ci` .*ended with 3.*the reason"):
        hook.run(hook.Tools((str(npm),), tmp_path), pages, "ci")


def test_the_package_knows_whether_its_pages_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shoal_dashboard, "__file__", str(tmp_path / "__init__.py"))
    assert shoal_dashboard.assets() is None
    (tmp_path / "static").mkdir()
    assert shoal_dashboard.assets() is None
    (tmp_path / "static" / "index.html").write_text("")
    assert shoal_dashboard.assets() == tmp_path / "static"
