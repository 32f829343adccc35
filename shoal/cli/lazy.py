"""A group of commands that imports a command's module only when that command is run, or asked about."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Entry:
    """A command, or a group of them: its name, its place as "module:attribute", and how the help lists it."""

    name: str
    place: str
    panel: str
    summary: str


class Commands(MutableMapping[str, Any]):
    """Typer's commands by name, in the order of the entries; each is made when it is first taken."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = made(self._entries[name])
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._entries, **self._made})

    def __len__(self) -> int:
        return len({**self._entries, **self._made})

    def listed(self) -> dict[str, Any]:
        """Stand-ins of all commands, with what a list of them shows, without importing any."""
        return {
            name: TyperCommand(name, help=entry.summary, rich_help_panel=entry.panel)
            for name, entry in self._entries.items()
        }


def made(entry: Entry) -> Any:
    """Import an entry's command or group, and make typer's object of it."""
    module, _, attribute = entry.place.partition(":")
    found = getattr(import_module(module), attribute)
    holder = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=entry.name, rich_help_panel=entry.panel)
    else:
        holder.command(entry.name, rich_help_panel=entry.panel)(found)
    holder.callback()(_nothing)  # so that one command alone makes a group too
    group: Any = typer.main.get_command(holder)
    return group.commands[entry.name]


def _nothing() -> None:
    """The callback of a group that has only the command that is asked for."""


class LazyGroup(TyperGroup):
    """A group whose commands are the `entries` of its class."""

    entries: Sequence[Entry] = ()

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = self._lazy = Commands(self.entries)
        self._listed: dict[str, Any] | None = None

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the order of the entries."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; while help is written, its stand-in."""
        commands = self._lazy if self._listed is None else self._listed
        if cmd_name not in commands:  # get() would take a KeyError of an import for this
            return None
        return commands[cmd_name]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, from the entries alone."""
        self._listed = self._lazy.listed()
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listed = None
