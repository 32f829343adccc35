"""Tables that fit the terminal: too wide, they leave out columns or transpose.

This module imports rich, so it is imported when a table is made (`shoal.cli.terminal.text.table`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions
from rich.table import Table

GAP = 3
"""Blanks between two columns."""

PROSE_MIN = 20
"""Characters that a column of prose needs to be read; it may take more lines then."""


class FittingTable(Table):
    """A table whose cells stay on one line, except in columns of `prose`.

    If the table is too wide, it leaves out columns of `spare`, the last first. If that is not enough, a table that
    `turns` has a column for each of its rows. Other long cells are folded.
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        right: Iterable[str] = (),
        prose: Iterable[str] = (),
        spare: Sequence[str] = (),
        turns: bool = False,
    ) -> None:
        super().__init__()
        self._prose, self._spare, self._turns = frozenset(prose), tuple(spare), turns
        numeric = frozenset(right)
        for name in columns:
            self.add_column(name, justify="right" if name in numeric else "left")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """Yield the first form that fits, or the last one, folded."""
        forms = list(self._forms())
        fitting = (form for form in forms if self._width(form, console) <= options.max_width)
        form = next(fitting, None)
        if form is None:
            form = forms[-1]
            for column in form.columns:
                column.no_wrap = False
        yield form

    def _forms(self) -> Iterator[Table]:
        for kept in range(len(self._spare), -1, -1):
            yield self._without(self._spare[kept:])
        if self._turns:
            yield self._turned()

    def _without(self, gone: Sequence[str]) -> Table:
        """Return the table without some columns."""
        form, kept = _empty(), [column for column in self.columns if column.header not in gone]
        for column in kept:
            whole = column.header not in self._prose
            form.add_column(column.header, justify=column.justify, overflow="fold", no_wrap=whole)
        for row in zip(*(column.cells for column in kept), strict=True):
            form.add_row(*row)
        return form

    def _turned(self) -> Table:
        """Return the table transposed."""
        form, (first, *others) = _empty(), self.columns
        form.add_column(first.header, no_wrap=True)
        for name in first.cells:
            form.add_column(name, justify="right", overflow="fold", no_wrap=True)
        for column in others:
            form.add_row(column.header, *column.cells)
        return form

    def _width(self, form: Table, console: Console) -> int:
        """Return the width of a line in characters."""
        widths = []
        for column in form.columns:
            natural = max(console.measure(cell).maximum for cell in (column.header, *column.cells))
            widths.append(min(natural, PROSE_MIN) if column.header in self._prose else natural)
        return sum(widths) + GAP * (len(widths) - 1)


def _empty() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
