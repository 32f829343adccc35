"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Url = Annotated[
    str | None,
    typer.Option(help="address of the coordinator; else SHOAL_CLIENT__URL or shoal.toml", show_default=False),
]
Token = Annotated[
    str | None,
    typer.Option(help="operator token; better kept out of sight in SHOAL_CLIENT__TOKEN_FILE", show_default=False),
]
Job = Annotated[str, typer.Argument(metavar="JOB", help="name of the job", show_default=False)]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.toml", help="job file", show_default=False)]
Why = Annotated[str, typer.Option(help="reason, kept with the job and shown to everybody", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="don't ask")]
