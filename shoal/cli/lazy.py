"""A group of commands that imports a command's module when it is run or its help is shown."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


def without_flag_types(parameters: list[Any]) -> list[Any]:
    """Return parameters whose flags have no type in the help, because a flag takes no value."""
    for one in parameters:
        if getattr(one, "is_flag", False):
            one.metavar = ""
    return parameters


def reflowed(text: str | None) -> str | None:
    """Return a text with one line for each paragraph, which the help wraps to the terminal's width."""
    return text and "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


class Command(TyperCommand):
    """A command."""

    def __init__(self, *given: Any, help: str | None = None, **more: Any) -> None:  # noqa: A002 - click's name
        super().__init__(*given, help=reflowed(help), **more)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with the option for help."""
        return without_flag_types(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with the option for help."""
        return without_flag_types(super().get_params(ctx))


@dataclass(frozen=True)
class Entry:
    """A command or group: name, "module:attribute", and its section and text in the help."""

    name: str
    place: str
    panel: str
    summary: str


class Commands(MutableMapping[str, Any]):
    """A mapping of typer's commands by name, in the order of the entries, created on first access."""

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
        """Return stand-ins of all commands for the help, without imports."""
        return {
            name: TyperCommand(name, help=entry.summary, rich_help_panel=entry.panel)
            for name, entry in self._entries.items()
        }


def made(entry: Entry) -> Any:
    """Import an entry's command or group as an object of typer."""
    module, _, attribute = entry.place.partition(":")
    found = getattr(import_module(module), attribute)
    holder = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        for one in found.registered_commands:
            one.cls = Command
        holder.add_typer(found, name=entry.name, rich_help_panel=entry.panel, cls=Group)
    else:
        holder.command(entry.name, rich_help_panel=entry.panel, cls=Command)(found)
    holder.callback()(_nothing)  # so that one command alone makes a group too
    group: Any = typer.main.get_command(holder)
    return group.commands[entry.name]


def _nothing() -> None:
    """Do nothing, as the callback of a group with one command."""


class LazyGroup(Group):
    """A group with the `entries` of its class as commands."""

    entries: Sequence[Entry] = ()

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = self._lazy = Commands(self.entries)
        self._listed: dict[str, Any] | None = None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command. The error for an unknown name suggests commands that are like it, or that begin with it."""
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as error:
            begun = [repr(name) for name in self.commands if args[0] and name.startswith(args[0])]
            if begun and "Did you mean" not in str(error):
                error.message += f" Did you mean {', '.join(begun)}?"
            raise

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all names in the order of the entries."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name, or its stand-in while help is written."""
        commands = self._lazy if self._listed is None else self._listed
        if cmd_name not in commands:  # get() would take a KeyError of an import for this
            return None
        return commands[cmd_name]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help from the entries."""
        self._listed = self._lazy.listed()
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listed = None
