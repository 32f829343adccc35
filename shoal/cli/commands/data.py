"""`shoal data`: data sets in the cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import safe, size, table

app = typer.Typer(help="Data sets: list, get.")


@app.callback(invoke_without_command=True)
def data(context: typer.Context) -> None:
    """List and get data sets."""
    if context.invoked_subcommand is None:
        list_data()


@app.command("list")
def list_data() -> None:
    """List the data sets that shoal can fetch, and whether they are here."""
    from shoal.learn.data.datasets import DATA_SETS

    cache = cache_folder()
    found = []
    rows = table("name", "what", "licence", "size", "here", right=["size"], prose=["what", "here"])
    for name, one in DATA_SETS.items():
        folder = cache / name
        here = all((folder / part.name).is_file() for part in one.parts)
        nbytes = sum(part.nbytes for part in one.parts)
        found.append({"name": name, "title": one.title, "licence": one.licence, "bytes": nbytes, "here": here})
        rows.add_row(name, one.title, one.licence, size(nbytes), safe(folder) if here else "[dim]no[/]")
    embedded = 'The digits (1,797 of them) come with shoal and need no download: learner = "shoal.learn.digits:learner"'
    out.answer({"cache": cache, "data_sets": found}, rows, f"[dim]{embedded}[/]")


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="mnist or fashion-mnist", show_default=False)],
    source: Annotated[
        Path | None,
        typer.Option("--from", help="folder with the files, or the folder above it", show_default=False),
    ] = None,
) -> None:
    """Fetch a data set into the cache, from the internet or a folder. Every file's SHA-256 is checked."""
    from shoal.learn.data.datasets import get as fetch

    with out.progress(name, None) as advance:
        folder = fetch(
            name,
            source,
            cache=cache_folder(),
            progress=lambda file, done, total: advance(
                done, f"{file} {size(done)}" + (f" of {size(total)}" if total else "")
            ),
        )
    out.answer({"name": name, "folder": folder}, f"{name}: {safe(folder)}")


def cache_folder() -> Path:
    """Return the folder of data sets from the settings."""
    from shoal.configuration import DataSettings, load

    return load(DataSettings, "data", config=out.flags.config).cache.expanduser()


def share_cache() -> None:
    """Export the cache folder of a settings file to the environment, where learners look for it."""
    os.environ["SHOAL_DATA__CACHE"] = str(cache_folder())
