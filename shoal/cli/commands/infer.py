"""`shoal infer`: the held-out examples of a learner, answered by a network with exits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.commands.serve import AboveOptions, ServedLearner, make_pump, open_model
from shoal.cli.terminal.options import Token, Url, spread
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import percent, size, table
from shoal.cli.terminal.values import plain_assignments
from shoal.core.errors import InvalidJob

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.core.exits.cascade_level import CascadeAnswer
    from shoal.serving.inference import Ask, Inference


@spread
def infer(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="as for shoal serve: JOB, JOB@LABEL or FILE", show_default=False),
    ],
    *,
    of: ServedLearner,
    thresholds: Annotated[
        str | None,
        typer.Option(
            metavar="T,T",
            help="of all exits but the last (default: chosen on the same examples, at most half a point of accuracy "
            "below the cloud)",
            show_default=False,
        ),
    ] = None,
    above: AboveOptions,
    url: Url = None,
    token: Token = None,
) -> int:
    """Measure the levels of a network with exits: how often each answers, how many bytes, how accurate.

    The examples are those that the learner holds out. All levels are computed here; with --up only that of the
    devices, and its server answers the rest.

    Example: shoal infer model.safetensors --learner mine.py:learner --thresholds 0.2,0.2
    """
    from shoal.core.exits.thresholds import checked_thresholds
    from shoal.learn.loading import load_learner
    from shoal.runtime.observability import logs
    from shoal.serving.inference import chosen_thresholds, here
    from shoal.serving.inference import infer as measured
    from shoal.serving.served_level import exit_network
    from shoal.serving.served_model import ServedModel

    if above.up is None and above != AboveOptions():
        raise InvalidJob("--up-token and --timeout-s need --up", code="usage.invalid", hint="add --up URL")
    logs.configure("infer", level="warning")
    learner = load_learner(of.learner, plain_assignments(of.option or [], "--option"), device=of.device or "")
    served = ServedModel(learner)
    with ExitStack() as until_the_end:
        open_model(until_the_end, served, model, (url, token))
    levels = exit_network(learner).levels
    limits = chosen_thresholds(learner) if thresholds is None else checked_thresholds(_numbers(thresholds), len(levels))
    ask = here(learner, limits) if above.up is None else _asking(served, limits[0], above)
    with out.progress("answering", 1.0) as show:
        found = asyncio.run(measured(learner, ask, show))
    _show(found, limits, chosen=thresholds is None)
    return 0


def _asking(served: Any, threshold: float, above: AboveOptions) -> Ask:
    """Return a function that computes the devices' part, and asks the level above for the rest."""
    pump = make_pump(served, "device", threshold, above)

    async def ask(inputs: Sequence[Tensor]) -> CascadeAnswer:
        answer, _ = await pump.ask(inputs)
        return answer

    return ask


def _numbers(text: str) -> list[float]:
    try:
        return [float(one) for one in text.split(",")]
    except ValueError:
        hint = "write numbers with commas: 0.2,0.3"
        raise InvalidJob(f"--thresholds is {text!r}", code="usage.invalid", hint=hint) from None


def _show(found: Inference, thresholds: Sequence[float], *, chosen: bool) -> None:
    """Print the result."""
    shown = table("level", "threshold", "answered", "fraction", "accuracy", "degraded", "sent up", right=COLUMNS)
    for one, threshold in zip(found.levels, [*map("{:.3f}".format, thresholds), ""], strict=True):
        row = (str(one.answered), percent(one.fraction), percent(one.accuracy), str(one.degraded), size(one.sent_bytes))
        shown.add_row(one.level, threshold, *row)
    total = f"{found.examples} examples, accuracy {percent(found.accuracy)}, {found.bytes_per_answer:.1f} B per answer"
    data = {"levels": found.levels, "thresholds": thresholds, "thresholds_chosen": chosen}
    data |= {"examples": found.examples, "accuracy": found.accuracy, "bytes_per_answer": found.bytes_per_answer}
    out.answer(data, shown, total)


COLUMNS = ("threshold", "answered", "fraction", "accuracy", "degraded", "sent up")
