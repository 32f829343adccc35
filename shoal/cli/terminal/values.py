"""`KEY=VALUE` on the command line, and job files with changed keys."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core.errors import ShoalError
from shoal.learn.options import literal

if TYPE_CHECKING:
    from shoal.jobs.spec import JobSpec


def assignments(texts: Iterable[str], option: str) -> dict[str, Any]:
    """Return the values of `KEY=VALUE` options in TOML's notation; a value that is not TOML is a string."""
    return {key: literal(value) for key, value in plain_assignments(texts, option).items()}


def plain_assignments(texts: Iterable[str], option: str) -> dict[str, str]:
    """Return the values of `KEY=VALUE` options as they were written."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ShoalError(
                f"{option} {text}: not of the form KEY=VALUE", code="usage.invalid", hint=f"{option} lr=0.05"
            )
        found[key.strip()] = value
    return found


def job_of(path: Path, changes: Iterable[str] = (), name: str | None = None) -> tuple[JobSpec, dict[str, Any]]:
    """Return a validated job file with changed keys (`algorithm.lr=0.05`), and its JSON values. Raises `InvalidJob`."""
    from shoal.jobs.spec import load_job, parse_job

    load_job(path)  # report errors of the file itself with its path
    values = changed(tomllib.loads(path.read_text(encoding="utf-8")), changes)
    if name is not None:
        values["name"] = name
    return parse_job(values), values


def changed(values: dict[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Return a job's values with changed keys."""
    from shoal.jobs.job_tables import as_tables

    values = as_tables(values)
    for key, value in assignments(changes, "--set").items():
        *tables, last = key.split(".")
        table = values
        for inner in tables:
            table = table.setdefault(inner, {})
            if not isinstance(table, dict):
                raise ShoalError(f"--set {key}: {inner} is not a table", code="usage.invalid", hint="see the job file")
        table[last] = value
    return values
