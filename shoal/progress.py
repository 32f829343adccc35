"""Progress of a simulation: a bar in a terminal or notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from shoal.core.errors.phrases import seconds

Progress = Callable[[float, str], None]
"""Called with the fraction done, 0 to 1, and what happened last."""

EVERY_S = 0.1
"""A display is renewed no more often than that."""

STEP = 0.1
"""Fraction of the work between two lines, where no display is."""


RATE_AFTER_S = 1.0
"""Seconds of work before a rate is shown."""


class WorkRate:
    """The rate of tasks since the first one, and the time that is left at this rate."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self.tasks = clock, 0
        self._since: float | None = None

    def add(self) -> None:
        """Count a task."""
        self.tasks += 1
        if self._since is None:
            self._since = self._clock()

    def text(self, share: float) -> str:
        """Return the rate, and the time left where `share` of the work is done: "412 tasks/s, 2 min left"."""
        elapsed_s = 0.0 if self._since is None else self._clock() - self._since
        if elapsed_s < RATE_AFTER_S:
            return ""
        per_s = self.tasks / elapsed_s
        rate = f"{per_s:,.0f} tasks/s" if per_s >= 10 else f"{per_s:.2g} tasks/s"
        return f"{rate}, {seconds(elapsed_s * (1 - share) / share)} left" if 0 < share < 1 else rate


@contextmanager
def displayed(progress: bool | Progress | None, title: str) -> Iterator[Progress | None]:
    """Yield the function that shows progress.

    None: a display in a notebook or terminal, else nothing. True: a display there, and occasional lines elsewhere.
    False: nothing. A function is called itself.
    """
    if callable(progress):
        yield progress
    elif progress is False or (progress is None and not (_notebook() or sys.stderr.isatty())):
        yield None
    elif _notebook():
        yield _in_notebook(title)
    elif sys.stderr.isatty():
        with _in_terminal(title) as update:
            yield update
    else:
        yield _in_lines(title)


def _notebook() -> Any:
    """Return the IPython module if this process is a notebook's kernel, else None. Imports nothing."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return module if shell is not None and hasattr(shell, "kernel") else None


def _in_notebook(title: str) -> Progress:
    """Draw a bar below the cell, with IPython alone."""
    from importlib import import_module

    display: Any = import_module("IPython.display")

    def drawn(share: float, text: str) -> Any:
        bar = f'<progress value="{share:.3f}" max="1"></progress>'
        return display.HTML(f"{escape(title)} {bar} {share:.0%} <small>{escape(text)}</small>")

    handle = display.display(drawn(0.0, ""), display_id=True)
    return _seldom(lambda share, text: handle.update(drawn(share, text)))


@contextmanager
def _in_terminal(title: str) -> Iterator[Progress]:
    """Draw a bar on stderr, and remove it at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(24), TaskProgressColumn(), TimeElapsedColumn())
    text = TextColumn("[dim]{task.fields[text]}", markup=True)
    with Bar(*columns, text, console=Console(stderr=True), transient=True) as bar:
        from rich.markup import escape as plain

        task = bar.add_task(plain(title), total=1.0, text="")
        yield _seldom(lambda share, text: bar.update(task, completed=share, text=plain(text)))


def _in_lines(title: str) -> Progress:
    """Write a line to stderr for each tenth."""
    last = 0.0

    def update(share: float, text: str) -> None:
        nonlocal last
        if share - last >= STEP or (share >= 1 and last < 1):
            last = share
            sys.stderr.write(f"{title}: {share:.0%}, {text}\n")

    return update


def _seldom(draw: Progress) -> Progress:
    """Limit the rate of calls; the last one always passes."""
    drawn_at = -EVERY_S

    def update(share: float, text: str) -> None:
        nonlocal drawn_at
        now = time.monotonic()
        if share >= 1 or now - drawn_at >= EVERY_S:
            drawn_at = now
            draw(share, text)

    return update
