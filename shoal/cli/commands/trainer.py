"""`shoal trainer`: the training process of a node on another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import safe


def trainer(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            envvar="SHOAL_TRAINER_FOLDER",
            help="folder that the node has made for this start",
            show_default=False,
        ),
    ],
) -> None:
    """Train for a node whose trainer_command runs this on a machine of a batch scheduler.

    Example, in a script for sbatch: shoal trainer "$SHOAL_TRAINER_FOLDER"

    The node must run, and share the folder with this machine. The learner's file is read here. Its output goes to the
    log of the node. This ends with the node, or when that does not want it any more.
    """
    from shoal.runtime.training.relay import Relay

    why = Relay(folder).run()
    out.answer({"folder": str(folder), "ended": why}, f"the node does not want this process any more: {safe(why)}")
