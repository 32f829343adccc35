"""Start and end of every command: flags that may stand anywhere, errors in plain words, exit codes.

0   ok
1   the job or the server: it failed, was stopped, or refused the request
2   usage: a wrong option, an unknown name in a file of yours
3   no connection, or no sufficient credential
4   time-out
130 Ctrl-C
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer

from shoal.cli.lazy import LazyGroup
from shoal.cli.process.signals import INTERRUPTED
from shoal.cli.terminal.output import Flags, out
from shoal.core.errors import InvalidJob, NotAllowed, ShoalError, Unreachable
from shoal.extras import extra_of, not_installed

OK, FAILED, USAGE, CONNECTION, TIMEOUT = 0, 1, 2, 3, 4

WITH_JOB = ("run", "simulate")
"""Commands with an option `--set` for values of the job file."""

_SWITCHES = {"--json", "--quiet", "-q", "--verbose", "-v"}


def flags_first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the common flags moved to the front, where the parser expects them."""
    front, rest = [], list(arguments)
    end = rest.index("--") if "--" in rest else len(rest)
    kept: list[str] = []
    position = 0
    while position < end:
        argument = rest[position]
        if argument in _SWITCHES or argument.startswith("--config="):
            front.append(argument)
        elif argument == "--config" and position + 1 < end and not rest[position + 1].startswith("-"):
            position += 1
            front += [argument, rest[position]]
        else:
            kept.append(argument)
        position += 1
    return front + kept + rest[end:]


def exit_code(error: ShoalError) -> int:
    """Return the exit code for an error."""
    if error.code.endswith("time-out"):
        return TIMEOUT
    if error.code.startswith("port."):  # a local error: a port of this machine is taken
        return FAILED
    if isinstance(error, Unreachable | NotAllowed) or error.code.startswith("auth."):
        return CONNECTION
    if isinstance(error, InvalidJob) or error.code.startswith(("config.", "usage.")):
        return USAGE
    return FAILED


class Program(LazyGroup):
    """The root of the command line."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command. typer turns interrupts into an exit code without a message."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as end:
            out.interrupted(str(end))
            raise

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command and exit, or return the code when not standalone."""
        arguments = flags_first(sys.argv[1:] if args is None else args)
        # Until the parser has run: an error in the arguments must come out in the right form already.
        out.begin(Flags(json="--json" in arguments, verbose="--verbose" in arguments or "-v" in arguments))
        try:
            code = super().main(arguments, prog_name or "shoal", complete_var, False, windows_expand_args, **extra)
        except KeyboardInterrupt:
            code = INTERRUPTED
        except typer.Abort:
            code = FAILED
            out.error("nothing was done", "usage.aborted")
        except typer.TyperException as error:
            code = _usage(error)
        except ShoalError as error:
            code = exit_code(error)
            if out.flags.verbose:
                out.console("stderr").print_exception()
            out.error(error.message, error.code, error.hint)
        except Exception as error:  # noqa: BLE001 - the last resort: a bug must not look like a crash of Python
            code = _unexpected(error)
        code = code if isinstance(code, int) else OK
        if code and out.flags.json and not out.has_answered:
            out.error(*(("interrupted by a signal", "interrupted") if code == INTERRUPTED else ("it failed", "failed")))
        if standalone_mode:
            sys.exit(code)
        return code


def _unexpected(error: Exception) -> int:
    """Report a package that an extra installs, or a bug with its traceback; return the exit code."""
    if isinstance(error, ModuleNotFoundError) and extra_of(error):
        missing = not_installed(error)
        out.error(missing.message, missing.code, missing.hint)
        return exit_code(missing)
    out.console("stderr").print_exception(max_frames=0 if out.flags.verbose else 4)
    hint = "this is a bug in shoal or in your code above: please report it with the lines above"
    out.error(f"{type(error).__name__}: {error}", "internal", hint)
    return FAILED


def _usage(error: typer.TyperException) -> int:
    """Print a usage error."""
    context = getattr(error, "ctx", None)
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":  # it has shown the help already
        if out.flags.json:
            out.error("no command was given", "usage.invalid", "shoal --help lists them")
        return USAGE
    usage = context.get_usage() if context is not None else ""
    path = context.command_path if context is not None else "shoal"
    hint = _key_of_job(error, path) or f"{path} --help tells more"
    out.error(message, "usage.invalid", hint, usage)
    return USAGE


def _key_of_job(error: typer.TyperException, path: str) -> str:
    """Return a hint for an unknown option that is a key of the job file, in a command that can set these; else ""."""
    key = getattr(error, "option_name", "").lstrip("-").replace("-", "_")
    if not key or path.rpartition(" ")[2] not in WITH_JOB:
        return ""
    from shoal.jobs.spec import JobSpec
    from shoal.plugins import KINDS

    found = f"{key}.name" if key in KINDS else key
    return f"did you mean --set {found}=…?" if key in JobSpec.model_fields else ""
