"""`shoal new`, and the examples that it copies: each is used as its README says."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.commands.new import commands_of, templates
from shoal.jobs.spec import load_job
from tests.cli.conftest import Shoal, envelope
from tests.conventions.sources import ROOT

LINES_MAX = 10


def test_without_a_folder_the_templates_are_listed(shoal: Shoal) -> None:
    found = envelope(shoal("new", "--json"))["data"]["templates"]
    assert found["pytorch"] == "A PyTorch model"
    assert set(found) == {path.parent.name for path in (ROOT / "examples").glob("*/README.md")}
    assert "A PyTorch model" in shoal("new").stdout


def test_the_job_gets_the_name_of_the_folder(shoal: Shoal, place: Path) -> None:
    said = shoal("new", "clinics").stdout
    assert load_job(place / "clinics/job.toml").name == "clinics"
    assert "pip install '.[torch]'" in said  # brackets are not markup
    assert "cd clinics" in said
    assert "tumours.csv" in said
    assert shoal("new", "My Clinics").exit_code == 0
    assert load_job(place / "My Clinics/job.toml").name == "tumours"


def test_nothing_is_overwritten(shoal: Shoal, place: Path) -> None:
    (place / "mine").mkdir()
    assert shoal("new", "mine").exit_code == 0
    (place / "mine/job.toml").write_text("")
    refused = shoal("new", "mine")
    assert (refused.exit_code, (place / "mine/job.toml").read_text()) == (2, "")
    assert "mine is not empty" in refused.stderr
    (place / "file").write_text("")
    assert "file/mine: Not a directory" in shoal("new", "file/mine").stderr


def test_an_unknown_template_is_named(shoal: Shoal, place: Path) -> None:
    refused = shoal("new", "mine", "--template", "pytroch")
    assert refused.exit_code == 2
    assert "there is no template 'pytroch'" in refused.stderr
    assert "did you mean 'pytorch'?" in refused.stderr
    assert not (place / "mine").exists()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("template", templates())
def test_a_readme_is_short_and_its_commands_run(shoal: Shoal, place: Path, template: str) -> None:
    assert shoal("new", "mine", "--template", template).exit_code == 0
    assert len((place / "mine/README.md").read_text().splitlines()) <= LINES_MAX
    commands = [command for command in commands_of(place / "mine") if not command.startswith("pip install")]
    assert commands
    if any(command.startswith("node ") for command in commands):
        return  # test_javascript.py
    path = os.pathsep.join([str(ROOT), *(str(ROOT / part) for part in ("coordinator", "edge_client", "peer"))])
    for command in commands:
        program, *arguments = shlex.split(command)
        argv = [sys.executable, *(["-m", "shoal"] if program == "shoal" else []), *arguments]
        done = subprocess.run(
            argv,
            cwd=place / "mine",
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert (program in ("shoal", "python"), done.returncode) == (True, 0), done.stderr
