#!/usr/bin/env python3
"""Set up, run and check shoal from a clone. Needs Python 3.11 or newer and nothing else: only the standard library.

The first command makes a virtual environment in .venv and installs shoal into it: `demo`, `coordinator` and `dashboard`
what they need themselves, the others what testing needs too. Later ones install again only when pyproject.toml has
changed.

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
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
PIP = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
BUILDER = "hatchling>=1.27"  # as in pyproject.toml; it is in .venv first, so that the pages are built meanwhile
HOOK = "from pathlib import Path\nimport hatch_build as hook\npages = Path('dashboard')"
WIDER = {"demo": ("demo", "dev"), "dev": ("dev",)}  # an extra, and those that bring all of it

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


class Running(NamedTuple):
    """A command that was begun: what it does, its process, the file that has its output, and when it began."""

    what: str
    process: subprocess.Popen[bytes]
    said: IO[bytes]
    started: float


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
    """Bring .venv up to date with pyproject.toml, for everything. Quick where it is."""
    if not is_installed("dev"):
        make_venv()
        install_extra("dev")
    return 0


def ready(extra: str) -> None:
    """Install shoal with an extra and build the dashboard's pages, side by side. Quick where both are up to date."""
    if is_installed(extra):
        pages()
        return
    make_venv()
    building = begin_pages()
    install_extra(extra)
    if building is not None:
        end_pages(building)


def is_installed(extra: str) -> bool:
    """Whether .venv has this extra, as pyproject.toml has it now, or one that brings all of it."""
    stamps = [stamp(name) for name in WIDER[extra]]
    return PYTHON.exists() and any(one.exists() and one.read_text() == fingerprint() for one in stamps)


def stamp(extra: str) -> Path:
    """The file that holds the fingerprint of the pyproject.toml that this extra was installed from."""
    return VENV / f".installed-{extra}"


def fingerprint() -> str:
    """Changes with what there is to install, and where."""
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + str(ROOT).encode()).hexdigest()


def make_venv() -> None:
    """Make .venv where there is none, or one of too old a Python."""
    if version_of(PYTHON) < OLDEST:
        quietly("making .venv", [newest_python(), "-m", "venv", "--clear", str(VENV)])
    quietly("installing the build tools", [*PIP, BUILDER])


def install_extra(extra: str) -> None:
    """Install shoal, editable, with an extra, but without building the pages."""
    stamp(extra).unlink(missing_ok=True)
    command = [*PIP, "--no-build-isolation", "--editable", f".[{extra}]"]
    quietly("installing shoal into .venv", command, ROOT, {**os.environ, "SHOAL_SKIP_UI": "1"})
    stamp(extra).write_text(fingerprint())


def quietly(what: str, command: list[str], folder: Path = ROOT, environment: dict[str, str] | None = None) -> None:
    """Run a long command behind one line that shows the time; where it fails, show all it said and give up."""
    code, said = end(begin(what, command, folder, environment))
    if code:
        print(said, file=sys.stderr)
        sys.exit(f"{what}: failed with exit code {code}; this was run:\n  {' '.join(command)}")


def begin(what: str, command: list[str], folder: Path = ROOT, environment: dict[str, str] | None = None) -> Running:
    """Begin a long command; `end` waits for it."""
    said = tempfile.TemporaryFile()  # noqa: SIM115 (`end` closes it)
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
    )
    return Running(what, process, said, time.monotonic())


def end(running: Running) -> tuple[int, str]:
    """Wait for a command behind one line that shows the time; its exit code, and all it said."""
    what, process, file, started = running
    alive = sys.stdout.isatty()
    with file:
        if not alive:
            print(f"{what} …", flush=True)
        while process.poll() is None:
            if alive:
                print(f"\r{what} … {time.monotonic() - started:.0f} s", end="", flush=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
        print(f"{chr(13) if alive else ''}{what} … {time.monotonic() - started:.0f} s", flush=True)
        file.seek(0)
        return process.returncode, file.read().decode(errors="replace")


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
    ready("dev")
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
    ready("demo")
    return become([tool("shoal"), "demo", *rest])


def coordinator(rest: list[str]) -> int:
    """A coordinator in the foreground."""
    ready("demo")
    return become([tool("shoal"), "coordinator", *rest])


def dashboard(rest: list[str]) -> int:
    """The pages, or one of the scripts in dashboard/package.json."""
    if not rest:
        make_venv()
        return 0 if pages() else 1
    install([])
    _, command, folder, environment = npm_step(*rest)
    return run(command, folder, environment)


def pages() -> bool:
    """Build the dashboard's pages where their sources have changed; where that fails, say why and go on without."""
    building = begin_pages()
    return building is None or end_pages(building)


def begin_pages() -> Running | None:
    """Begin to build the pages, if their sources have changed."""
    if hook("print(hook.skipped() or hook.is_current(pages))") == "True":
        return None
    npm()
    code = f"{HOOK}\ntry: hook.build(pages)\nexcept hook.PagesError as error: print(error)"
    return begin("building the dashboard", [str(PYTHON), "-c", code])


def end_pages(building: Running) -> bool:
    """Wait until the pages are built; where that fails, say why."""
    code, why = end(building)
    if why:
        print(f"the dashboard was not built: {why}", file=sys.stderr)
    return not (code or why)


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
    asked = [str(PYTHON), "-c", f"{HOOK}\n{code}"]
    return subprocess.run(asked, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


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
