"""`shoal new`: a project of one's own, copied from an example that is installed with shoal."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Annotated

import typer

import shoal
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import table
from shoal.core.errors import ShoalError

JOB, README, DEFAULT = "job.toml", "README.md", "pytorch"
LEFT_OUT = ("__pycache__", ".pytest_cache")


def new(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="folder to make; without it: list templates")
    ] = None,
    template: Annotated[str, typer.Option("--template", "-t", metavar="NAME", help="example to copy")] = DEFAULT,
) -> None:
    """Make a project: job file, learner and README, copied from an example.

    Example: shoal new clinics --template sklearn_csv

    Nothing is fetched. The job gets the folder's name, if that can be the name of a job.
    """
    known = templates()
    if folder is None:
        shown = table("template", "", prose=("",))
        for name, path in known.items():
            shown.add_row(f"[bold]{name}[/]", title_of(path))
        out.answer({"templates": {name: title_of(path) for name, path in known.items()}}, shown)
        return
    if template not in known:
        from shoal.plugins import suggestion

        text = f"there is no template {template!r}"
        raise ShoalError(text, code="usage.template", hint=suggestion(template, known))
    from rich.markup import escape

    files = copy(known[template], folder)
    steps = [f"  cd {folder}", *(f"  {line}" for line in commands_of(folder))]
    out.answer(
        {"folder": str(folder), "template": template, "files": files},
        escape(f"{folder}: {', '.join(files)}"),
        escape("\n".join(["Next:", *steps])),
    )


def templates() -> dict[str, Path]:
    """Return the folders of examples by name: of the installed package, or of a clone."""
    package = Path(shoal.__file__).parent
    places = (package / "templates", package.parent / "examples")
    home = next((place for place in places if place.is_dir()), None)
    folders = sorted(home.iterdir()) if home is not None else []
    return {path.name: path for path in folders if (path / JOB).is_file()}


def title_of(folder: Path) -> str:
    """Return the title of a template's README."""
    return (folder / README).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def commands_of(folder: Path) -> list[str]:
    """Return the commands that a README shows, which are its indented lines."""
    text = (folder / README).read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]


def copy(template: Path, folder: Path) -> list[str]:
    """Copy a template and return the names of its files. Raises `ShoalError` if the folder holds something."""
    try:
        if folder.exists() and any(folder.iterdir()):
            hint = "choose another folder, or empty this one"
            raise ShoalError(f"{folder} is not empty", code="usage.folder", hint=hint)
        shutil.copytree(template, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        rename_job(folder / JOB, folder.resolve().name)
    except OSError as error:
        raise ShoalError(f"{folder}: {error.strerror}", code="usage.folder", hint="choose another folder") from None
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def rename_job(path: Path, name: str) -> None:
    """Give a job file that name, unless it cannot be the name of a job."""
    from shoal.validation.config_errors import NAME

    if re.fullmatch(NAME, name):
        text = re.sub(r'(?m)^name = ".*"$', f'name = "{name}"', path.read_text(encoding="utf-8"), count=1)
        path.write_text(text, encoding="utf-8")
