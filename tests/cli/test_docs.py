"""docs/reference/cli.md names every command, option, exit code and setting, and none that isn't there."""

from __future__ import annotations

import re
from typing import Any

import pytest
from typer.main import get_command

from shoal.cli.app import app
from shoal.cli.process import program
from shoal.cli.process.signals import INTERRUPTED
from shoal.configuration import ClientSettings, DataSettings
from tests.cli.command_cases import leaves
from tests.conventions.sources import ROOT

TEXT = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
OPTION = re.compile(r"`(--?[a-z][a-z-]*)\b[^`]*`")
HELP = {"--help", "-h"}


def documented() -> dict[str, str]:
    """The text below each command's heading."""
    parts = re.split(r"^#+ `shoal ([a-z ]+?)(?: [A-Z[][^`]*)?`$|^## ", TEXT, flags=re.MULTILINE)
    return {name: text for name, text in zip(parts[1::2], parts[2::2], strict=True) if name}


def option_rows(text: str) -> set[str]:
    """Return the options in the first column of a text's tables."""
    return set(OPTION.findall("\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))))


def shared_options(name: str) -> set[str]:
    """Return the options that the section of a command documents for all its commands."""
    return next(
        option_rows(introduction)
        for introduction, _, commands in (part.partition("\n### ") for part in TEXT.split("\n## "))
        if re.search(rf"^(?:### )?`shoal {name}\b(?! [a-z])", commands, flags=re.MULTILINE)
    )


def options(command: Any) -> set[str]:
    names = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return {name for name in names if name.startswith("-")} - HELP


def test_every_command_is_documented_and_no_other() -> None:
    assert documented().keys() == leaves().keys()


@pytest.mark.parametrize("name", sorted(leaves()))
def test_every_option_is_documented_and_no_other(name: str) -> None:
    assert option_rows(documented()[name]) | shared_options(name) == options(leaves()[name])


@pytest.mark.parametrize("name", sorted(leaves()))
def test_every_argument_is_in_the_heading(name: str) -> None:
    heading = next(line for line in TEXT.splitlines() if re.match(rf"#+ `shoal {name}\b", line))
    arguments = [parameter for parameter in leaves()[name].params if not parameter.opts[0].startswith("-")]
    assert len(re.findall(r"\b[A-Z]{3,}\b", heading)) == len(arguments)
    assert ("[" in heading) == any(not argument.required for argument in arguments)


def test_every_option_of_all_commands_is_documented() -> None:
    table = TEXT.split("## Output")[0]
    assert set(OPTION.findall(table)) - {"--help", "--json"} == options(get_command(app)) - {"--json"}


def test_every_default_that_is_named_is_right() -> None:
    for name, text in documented().items():
        for option, default in re.findall(r"^\| `(--[a-z-]+)`.*? \(`?([\d.a-z:]+)`?\) *\|$", text, flags=re.MULTILINE):
            parameter = next(one for one in leaves()[name].params if option in one.opts)
            if parameter.default is not None:
                assert str(parameter.default) == default, f"{name} {option}"


def test_every_exit_code_is_documented() -> None:
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, flags=re.MULTILINE)}
    codes = {program.OK, program.FAILED, program.USAGE, program.CONNECTION, program.TIMEOUT, INTERRUPTED}
    assert told == codes


def test_every_setting_of_these_sections_is_documented() -> None:
    told = set(re.findall(r"^\| `((?:client|data)\.\w+)` \|", TEXT, flags=re.MULTILINE))
    kinds = {"client": ClientSettings, "data": DataSettings}
    assert told == {f"{section}.{key}" for section, kind in kinds.items() for key in kind.model_fields}


@pytest.mark.parametrize("name", sorted(leaves()))
def test_every_option_explains_itself(name: str) -> None:
    for parameter in leaves()[name].params:
        assert parameter.help, f"{name} {parameter.name}"
