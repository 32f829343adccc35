#!/usr/bin/env python3
"""Set up, run and check shoal from a clone. Needs Python 3.11 or newer and nothing else: only the standard library.

The first command makes a virtual environment in .venv and installs shoal into it, with everything that running and
testing needs; later ones install again only when pyproject.toml has changed.

No package index is named here. pip asks the one that it is configured for, and the bound on torch in pyproject.toml
makes it choose a CPU build wherever one is offered. To force one, tell pip about PyTorch's CPU index in its own
configuration or in PIP_EXTRA_INDEX_URL: dev.py leaves both alone.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
PIP = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
STAMP = VENV / ".installed-for"  # holds the fingerprint of what was installed

OLDEST = (3, 11)
NAMES = ("python3.13", "python3.12", "python3.11", "python3", "python")
WORKERS = max(2, min(8, os.cpu_count() or 2))  # tests that run at a time
LITTER = ("build", "dist", "dashboard/shoal_dashboard/static", "dashboard/node_modules")
CACHES = ("__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".import_linter_cache")

HELP = """\
commands:
  demo          a coordinator, four edge clients and real data, live in the browser
  test          everything: check, the dashboard's tests, pytest       (-- ARGS: pytest alone, with ARGS)
  check         ruff, mypy, import-linter and the house rules, side by side: half a minute
  install       make .venv and install into it; the other commands do it by themselves
  coordinator   start a coordinator                                    (-- ARGS: see shoal coordinator --help)
  dashboard     build its pages again, or run one of its npm scripts   (-- dev | test | check | types)
  bench         list the benchmarks, or run one                        (-- NAME ARGS)
  clean         remove .venv, caches and everything built

What stands behind -- goes to the command: python dev.py test -- -k tree
"""


class Step(NamedTuple):
    """One command of a check: what it is called, what is run for it, and where."""

    name: str
    command: list[str]
    folder: Path = ROOT
    environment: dict[str, str] | None = None


# ---------------------------------------------------------------------------------------------------------- installing
def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="dev.py",
        usage="python dev.py COMMAND [-- ARGS]",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=sorted(COMMANDS), metavar="COMMAND", help="what to do, see below")
    parser.add_argument("rest", nargs="*", metavar="ARGS", help="handed to the command")
    given = parser.parse_args(arguments)
    try:
        return COMMANDS[given.command](given.rest)
    except KeyboardInterrupt:
        return 130


def newest_python() -> str:
    """The interpreter to build .venv with: the one running if it is new enough, else one found by its name."""
    if sys.version_info[:2] >= OLDEST:
        return sys.executable
    for name in NAMES:
        path = shutil.which(name)
        if path and version_of(path) >= OLDEST:
            return path
    have = "{}.{}".format(*sys.version_info[:2])
    sys.exit(
        f"shoal needs Python 3.11 or newer; this is {have}, and no newer one is on the PATH "
        f"({', '.join(NAMES)}).\nInstall one, then run it on this file: python3.12 dev.py {' '.join(sys.argv[1:])}"
    )


def version_of(python: str | Path) -> tuple[int, int]:
    """The (major, minor) version of an interpreter; (0, 0) of one that doesn't run."""
    asked = [str(python), "-c", "import sys; print(tuple(sys.version_info[:2]))"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout
        major, minor = ast.literal_eval(said.strip())
    except (OSError, subprocess.SubprocessError, ValueError, SyntaxError):
        return (0, 0)
    return int(major), int(minor)


def install(_: list[str]) -> int:
    """Bring .venv up to date with pyproject.toml. Quick where it is."""
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + str(ROOT).encode()).hexdigest()
    if STAMP.exists() and STAMP.read_text() == wanted and PYTHON.exists():
        return 0
    STAMP.unlink(missing_ok=True)
    if version_of(PYTHON) < OLDEST:
        quietly("making .venv", [newest_python(), "-m", "venv", "--clear", str(VENV)])
    quietly("installing shoal into .venv (minutes the first time)", [*PIP, "--editable", ".[dev]"])
    STAMP.write_text(wanted)
    return 0


def quietly(what: str, command: list[str], folder: Path = ROOT, environment: dict[str, str] | None = None) -> None:
    """Run a long command behind one line that shows the time; where it fails, show all it said and give up."""
    started = time.monotonic()
    alive = sys.stdout.isatty()
    with tempfile.TemporaryFile() as said:
        running = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
        )
        if not alive:
            print(f"{what} …", flush=True)
        while running.poll() is None:
            if alive:
                print(f"\r{what} … {time.monotonic() - started:.0f} s", end="", flush=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(1)
        print(f"{chr(13) if alive else ''}{what} … {time.monotonic() - started:.0f} s", flush=True)
        if running.returncode:
            said.seek(0)
            print(said.read().decode(errors="replace"), file=sys.stderr)
            sys.exit(f"{what}: failed with exit code {running.returncode}; this was run:\n  {' '.join(command)}")


# ------------------------------------------------------------------------------------------------------------ checking
def check_steps() -> list[Step]:
    """What `check` runs besides the house rules' tests; the slowest comes first, so that it starts first."""
    return [
        Step("mypy", [str(PYTHON), "-m", "mypy"]),
        Step("imports", [tool("lint-imports"), "--no-logo"]),
        Step("ruff", [tool("ruff"), "check", "."]),
        Step("format", [tool("ruff"), "format", "--check", "."]),
    ]


def check(_: list[str]) -> int:
    """All checks that take seconds."""
    install([])
    house = Step("house rules", [str(PYTHON), "-m", "pytest", "-q", "tests/house"])
    return 0 if side_by_side([house, *check_steps()]) else 1


def test(rest: list[str]) -> int:
    """The whole suite, or pytest alone where arguments were given for it."""
    install([])
    pages()
    pytest = [str(PYTHON), "-m", "pytest"]
    if rest:
        return run([*pytest, *rest])
    started = time.monotonic()
    scripts = [npm_step("check"), npm_step("test")]
    passed = side_by_side([*check_steps(), *scripts])
    # Tests of processes and sockets meet what a busy machine does to them. A second try tells that from a fault; those
    # that needed it are listed as RERUN, and are to be mended (CONTRIBUTING.md). What is deterministic fails again.
    again = ["--reruns=1", "--reruns-delay=2", "--rerun-show-tracebacks", "-raR"]
    code = run([*pytest, f"--numprocesses={WORKERS}", "--dist=worksteal", *again])
    verdict = ("pass" if passed else "FAIL (see above)", "passes" if code == 0 else "FAILS")
    print("checks {}, pytest {}; {:.0f} s in all".format(*verdict, time.monotonic() - started), flush=True)
    return code or (0 if passed else 1)


def side_by_side(steps: list[Step]) -> bool:
    """Run the steps two at a time, print each one's time, and all it said where it failed; True where none did."""

    def timed(step: Step) -> tuple[int, str, float]:
        started = time.monotonic()
        done = subprocess.run(
            step.command,
            check=False,
            cwd=step.folder,
            env=step.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return done.returncode, done.stdout.decode(errors="replace"), time.monotonic() - started

    passed = True
    with ThreadPoolExecutor(max_workers=2) as pool:
        running = {pool.submit(timed, step): step for step in steps}
        for future in as_completed(running):
            code, said, seconds = future.result()
            print(f"{'ok    ' if code == 0 else 'FAILED'} {running[future].name:<16} {seconds:5.1f} s", flush=True)
            if code:
                passed = False
                print(said, flush=True)
    return passed


# ------------------------------------------------------------------------------------------------------------- running
def demo(rest: list[str]) -> int:
    """Everything at once on this machine."""
    install([])
    pages()
    return become([tool("shoal"), "demo", *rest])


def coordinator(rest: list[str]) -> int:
    """A coordinator in the foreground."""
    install([])
    pages()
    return become([tool("shoal"), "coordinator", *rest])


def dashboard(rest: list[str]) -> int:
    """The pages, or one of the scripts in dashboard/package.json."""
    install([])
    if not rest:
        return 0 if pages() else 1
    _, command, folder, environment = npm_step(*rest)
    return run(command, folder, environment)


def pages() -> bool:
    """Build the dashboard's pages where their sources have changed; where that fails, say why and go on without."""
    if hook("print(hook.skipped() or hook.is_current(pages))") == "True":
        return True
    npm()
    print("building the dashboard …", flush=True)
    why = hook("try: hook.build(pages)\nexcept hook.PagesError as error: print(error)")
    if why:
        print(f"the dashboard was not built: {why}", file=sys.stderr)
    return not why


def npm_step(script: str, *arguments: str) -> Step:
    """An npm script of the dashboard, with all its packages in place, those for tests included."""
    command, environment = npm()
    folder = ROOT / "dashboard"
    tested = (folder / "node_modules" / "vitest").is_dir()
    if not tested or hook("print(hook.packages_are_current(pages))") != "True":
        quietly("installing the dashboard's packages", [*command, "ci"], folder, environment)
    return Step(f"dashboard {script}", [*command, "run", script, "--", *arguments], folder, environment)


def npm() -> tuple[list[str], dict[str, str]]:
    """How to run npm, and the environment in which its scripts find the same Node: the PATH's, or one from pip."""
    asked = "tools = hook.installed_node() or hook.packaged_node()\nif tools: print(*tools.npm, tools.bin, sep='\\n')"
    found = hook(asked).splitlines()
    if not found:
        quietly("fetching Node", [*PIP, hook("print(hook.NODE_PACKAGE)")])
        found = hook(asked).splitlines()
    *command, folder = found
    return command, {**os.environ, "PATH": os.pathsep.join([folder, os.environ.get("PATH", "")])}


def hook(code: str) -> str:
    """What code prints that asks hatch_build.py, which builds the pages for the wheel; only .venv has its packages."""
    asked = f"from pathlib import Path\nimport hatch_build as hook\npages = Path('dashboard')\n{code}"
    return subprocess.run(
        [str(PYTHON), "-c", asked], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


def bench(rest: list[str]) -> int:
    """Run a script of benchmarks/, or list them with the first line of what each says of itself."""
    if rest:
        install([])
        name, *arguments = rest
        return run([str(PYTHON), str(ROOT / "benchmarks" / f"{Path(name).stem}.py"), *arguments])
    for script in sorted((ROOT / "benchmarks").glob("[!_]*.py")):
        text = script.read_text(encoding="utf-8")
        if '"__main__"' in text:  # the others are what they share
            print(f"{script.stem:<20} {(ast.get_docstring(ast.parse(text)) or '').partition(chr(10))[0]}")
    print("\nrun one: python dev.py bench -- NAME")
    return 0


def clean(_: list[str]) -> int:
    """Back to what git knows: data and jobs that runs of shoal made elsewhere stay."""
    doomed = [VENV, *(ROOT / name for name in LITTER)]
    for folder, names, _files in os.walk(ROOT):
        names[:] = [name for name in names if name not in {".git", ".venv", "node_modules"}]
        doomed += [Path(folder, name) for name in names if name in CACHES or name.endswith(".egg-info")]
    for path in doomed:
        if path.exists():
            shutil.rmtree(path)
            print(f"removed {path.relative_to(ROOT)}")
    return 0


def tool(name: str) -> str:
    """A command of the virtual environment."""
    return str(BIN / (f"{name}.exe" if os.name == "nt" else name))


def run(command: list[str], folder: Path = ROOT, environment: dict[str, str] | None = None) -> int:
    """Run a command in the foreground and return its exit code; Ctrl-C reaches it too, and it decides when to end."""
    process = subprocess.Popen(command, cwd=folder, env=environment)
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            return process.wait()


def become(command: list[str]) -> int:
    """Put the command in this process's place, so that signals and the exit code are its own. Windows can't: run it."""
    if os.name != "nt":
        os.chdir(ROOT)
        sys.stdout.flush()
        os.execv(command[0], command)  # noqa: S606 (no shell is meant)
    return run(command)


COMMANDS = {
    "bench": bench,
    "check": check,
    "clean": clean,
    "coordinator": coordinator,
    "dashboard": dashboard,
    "demo": demo,
    "install": install,
    "test": test,
}

if __name__ == "__main__":
    sys.exit(main())
