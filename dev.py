#!/usr/bin/env python3
"""Set up, run and check shoal from a clone. Needs Python 3.11 or newer and nothing else: only the standard library.

The first command makes a virtual environment in .venv and installs shoal into it: `demo` and `coordinator` what they
need themselves, `check` and `test` what these tests need, the others everything. Later ones install again only when
pyproject.toml has changed.

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
import re
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
# Without --no-compile pip compiles each module of each package: a minute, for the few that are ever imported.
INSTALL = ["install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]
PIP = [str(PYTHON), "-m", "pip", *INSTALL]
BUILDER = "hatchling>=1.27"  # as in pyproject.toml; it is in .venv first, so that the pages are built meanwhile
HOOK = "from pathlib import Path\nimport hatch_build as hook\npages = Path('dashboard')"
WIDER = {  # an extra, and those that bring all of it
    "demo": ("demo", "test", "dev"),
    "test": ("test", "dev"),
    "dev": ("dev",),
}

OLDEST = (3, 11)
PIP_OLDEST = (22, 3)  # the first that installs into another environment
NAMES = ("python3.13", "python3.12", "python3.11", "python3", "python")
WORKERS = max(2, min(8, os.cpu_count() or 2))  # tests that run at a time
EVERY_CHANGE = "required"  # as tests/support/tiers.py marks them
THE_REST = "not required and not nightly"
LITTER = ("build", "dist", "dashboard/shoal_dashboard/static", "dashboard/node_modules")
CACHES = ("__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".import_linter_cache")

HELP = """\
commands:
  demo          a coordinator, four edge clients and real data, live in the browser
  test          check, the dashboard's tests, unit and essential tests  (-- ARGS: pytest alone, with ARGS)
  test-all      test, then all tests of processes and browsers
  test-nightly  swarms and soaks at full length
  mutations     break each essential promise in a copy, and show that its tests fail    (-- WORD …: those with WORD)
  check         ruff, mypy, import-linter and the conventions, with their table: half a minute
  install       make .venv and install into it; the other commands do it by themselves
  coordinator   start a coordinator                                    (-- ARGS: see shoal coordinator --help)
  dashboard     build its pages again, or run one of its npm scripts   (-- dev | test | check | types)
  bench         list the benchmarks, or run one                        (-- NAME ARGS)
  clean         remove .venv, caches and everything built

What stands behind -- goes to the command: python dev.py test -- -k tree
"""


class Step(NamedTuple):
    """A command of a check: title, arguments and folder."""

    name: str
    command: list[str]
    folder: Path = ROOT
    environment: dict[str, str] | None = None


class Running(NamedTuple):
    """A running command: title, process, output file and start time."""

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
    # Tests start hundreds of interpreters; without this each would compile all that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        return COMMANDS[given.command](given.rest)
    except KeyboardInterrupt:
        return 130


def newest_python() -> str:
    """Return the interpreter for .venv: this one if it is new enough, else one found by name."""
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
    """Return the (major, minor) version of an interpreter; (0, 0) if it does not run."""
    asked = [str(python), "-c", "import sys; print(tuple(sys.version_info[:2]))"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout
        major, minor = ast.literal_eval(said.strip())
    except (OSError, subprocess.SubprocessError, ValueError, SyntaxError):
        return (0, 0)
    return int(major), int(minor)


def install(_: list[str]) -> int:
    """Update .venv to pyproject.toml. Fast when it is up to date."""
    ready("dev", with_pages=False)
    return 0


def ready(extra: str, *, with_pages: bool = True) -> None:
    """Install shoal with an extra and build the dashboard in parallel. Fast when both are up to date."""
    missing = not is_installed(extra)
    if missing:
        make_venv()
    building = begin_pages() if with_pages else None
    if missing:
        install_extra(extra)
    if building is not None:
        end_pages(building)


def is_installed(extra: str) -> bool:
    """Return whether .venv has this extra, or one that includes it, for the present pyproject.toml."""
    stamps = [stamp(name) for name in WIDER[extra]]
    return PYTHON.exists() and any(one.exists() and one.read_text() == fingerprint() for one in stamps)


def stamp(extra: str) -> Path:
    """Return the file with the fingerprint of the pyproject.toml from which this extra was installed."""
    return VENV / f".installed-{extra}"


def fingerprint() -> str:
    """Return a hash of what is installed, and of its place."""
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + str(ROOT).encode()).hexdigest()


def make_venv() -> None:
    """Create .venv if it is missing or its Python is too old, with pip and the build tools.

    venv's own way to install pip takes 6 s of processor time, an existing pip one.
    """
    pip, tools = PIP, [BUILDER]
    if version_of(PYTHON) < OLDEST:
        python = newest_python()
        lends = pip_version(python) >= PIP_OLDEST
        quietly("making .venv", [python, "-m", "venv", "--clear", *(["--without-pip"] if lends else []), str(VENV)])
        if lends:
            pip, tools = [python, "-m", "pip", "--python", str(PYTHON), *INSTALL], ["pip", BUILDER]
    quietly("installing the build tools", [*pip, *tools])


def pip_version(python: str) -> tuple[int, ...]:
    """Return the (major, minor) version of an interpreter's pip; (0, 0) if it has none."""
    asked = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, text=True, check=False)
    found = re.match(r"pip (\d+)\.(\d+)", asked.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def install_extra(extra: str) -> None:
    """Install shoal, editable, with an extra, without building the dashboard."""
    stamp(extra).unlink(missing_ok=True)
    command = [*PIP, "--no-build-isolation", "--editable", f".[{extra}]"]
    quietly("installing shoal into .venv", command, ROOT, {**os.environ, "SHOAL_SKIP_UI": "1"})
    stamp(extra).write_text(fingerprint())


def quietly(what: str, command: list[str], folder: Path = ROOT, environment: dict[str, str] | None = None) -> None:
    """Run a long command behind one line with the time. On failure, print its output and exit."""
    code, said = end(begin(what, command, folder, environment))
    if code:
        print(said, file=sys.stderr)
        sys.exit(f"{what}: failed with exit code {code}; this was run:\n  {' '.join(command)}")


def begin(what: str, command: list[str], folder: Path = ROOT, environment: dict[str, str] | None = None) -> Running:
    """Start a long command; `end` waits for it."""
    said = tempfile.TemporaryFile()  # noqa: SIM115 (`end` closes it)
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
    )
    return Running(what, process, said, time.monotonic())


def end(running: Running) -> tuple[int, str]:
    """Wait for a command behind one line with the time; return its exit code and output."""
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
    """Return the steps of `check` besides the convention tests, the slowest first."""
    return [
        Step("mypy", [str(PYTHON), "-m", "mypy"]),
        Step("imports", [tool("lint-imports"), "--no-logo"]),
        Step("ruff", [tool("ruff"), "check", "."]),
        Step("format", [tool("ruff"), "format", "--check", "."]),
    ]


def check(_: list[str]) -> int:
    """Run all checks that take seconds, and print the table of conventions."""
    ready("test", with_pages=False)
    conventions = Step("conventions", [str(PYTHON), "-m", "pytest", "-q", "tests/conventions"])
    passed = side_by_side([conventions, *check_steps()])
    return run([str(PYTHON), "-m", "tests.conventions.report"]) or (0 if passed else 1)


def test(rest: list[str]) -> int:
    """Run the checks and the tests of every change, or pytest alone where arguments were given for it."""
    ready("test")
    return run([str(PYTHON), "-m", "pytest", *rest]) if rest else every_change([])


def test_all(rest: list[str]) -> int:
    """Run what `test` runs, then all other tests but the nightly ones; pass arguments to pytest."""
    ready("dev")
    first = every_change(rest)
    return tiers(THE_REST, rest) or first


def test_nightly(rest: list[str]) -> int:
    """Run the nightly tests; pass arguments to pytest."""
    ready("dev")
    return tiers("nightly", rest)


def mutations(rest: list[str]) -> int:
    """Apply the mutations of tests/mutations.toml, each to a copy, and show that its tests fail."""
    ready("test")
    npm_step("test")
    return run([str(PYTHON), "-m", "tests.support.mutations", *rest])


def every_change(options: list[str]) -> int:
    """Run the checks, the dashboard's tests and the required tests."""
    started = time.monotonic()
    scripts = [npm_step("check"), npm_step("test")]
    passed = side_by_side([*check_steps(), *scripts])
    code = tiers(EVERY_CHANGE, options)
    verdict = ("pass" if passed else "FAIL (see above)", "passes" if code == 0 else "FAILS")
    print("checks {}, pytest {}; {:.0f} s in all".format(*verdict, time.monotonic() - started), flush=True)
    return code or (0 if passed else 1)


def tiers(expression: str, options: list[str]) -> int:
    """Run the tests of some tiers in parallel."""
    parallel = [f"--numprocesses={WORKERS}", "--dist=worksteal"]
    return run([str(PYTHON), "-m", "pytest", *parallel, "-m", expression, *options])


def side_by_side(steps: list[Step]) -> bool:
    """Run two steps at a time, print the time of each and the output of failed ones; return whether all succeeded."""

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
    """Run the demo."""
    ready("demo")
    return become([tool("shoal"), "demo", *rest])


def coordinator(rest: list[str]) -> int:
    """Run a coordinator in the foreground."""
    ready("demo")
    return become([tool("shoal"), "coordinator", *rest])


def dashboard(rest: list[str]) -> int:
    """Build the dashboard, or run one of the scripts in dashboard/package.json."""
    if not rest:
        make_venv()
        return 0 if pages() else 1
    install([])
    _, command, folder, environment = npm_step(*rest)
    return run(command, folder, environment)


def pages() -> bool:
    """Build the dashboard if its sources have changed; on failure, print the reason and continue."""
    building = begin_pages()
    return building is None or end_pages(building)


def begin_pages() -> Running | None:
    """Start building the dashboard if its sources have changed."""
    if hook("print(hook.skipped() or hook.is_current(pages))") == "True":
        return None
    npm()
    code = f"{HOOK}\ntry: hook.build(pages)\nexcept hook.PagesError as error: print(error)"
    return begin("building the dashboard", [str(PYTHON), "-c", code])


def end_pages(building: Running) -> bool:
    """Wait for the build of the dashboard; on failure, print the reason."""
    code, why = end(building)
    if why:
        print(f"the dashboard was not built: {why}", file=sys.stderr)
    return not (code or why)


def npm_step(script: str, *arguments: str) -> Step:
    """Return the step for an npm script of the dashboard, with all its packages installed."""
    command, environment = npm()
    folder = ROOT / "dashboard"
    tested = (folder / "node_modules" / "vitest").is_dir()
    if not tested or hook("print(hook.packages_are_current(pages))") != "True":
        quietly("installing the dashboard's packages", [*command, "ci"], folder, environment)
    return Step(f"dashboard {script}", [*command, "run", script, "--", *arguments], folder, environment)


def npm() -> tuple[list[str], dict[str, str]]:
    """Return npm and the environment in which its scripts find the same Node: the PATH's, or one from pip."""
    asked = "tools = hook.installed_node() or hook.packaged_node()\nif tools: print(*tools.npm, tools.bin, sep='\\n')"
    found = hook(asked).splitlines()
    if not found:
        quietly("fetching Node", [*PIP, hook("print(hook.NODE_PACKAGE)")])
        found = hook(asked).splitlines()
    *command, folder = found
    return command, {**os.environ, "PATH": os.pathsep.join([folder, os.environ.get("PATH", "")])}


def hook(code: str) -> str:
    """Return the output of code that asks hatch_build.py, which builds the dashboard; only .venv has its packages."""
    asked = [str(PYTHON), "-c", f"{HOOK}\n{code}"]
    return subprocess.run(asked, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def bench(rest: list[str]) -> int:
    """Run a benchmark, or list them with the first line of their docstrings."""
    found = benchmarks()
    if rest:
        name, *arguments = rest
        script = found.get(Path(name).stem)
        if script is None:
            sys.exit(f"there is no benchmark {name}; python dev.py bench lists them")
        install([])
        return run([str(PYTHON), str(script), *arguments])
    for name, script in found.items():
        print(f"{name:<20} {(ast.get_docstring(ast.parse(script.read_text('utf-8'))) or '').partition(chr(10))[0]}")
    print("\nrun one: python dev.py bench -- NAME")
    return 0


def benchmarks() -> dict[str, Path]:
    """Return the benchmarks by name: a script that can be run, or a folder with `run.py`."""
    folder = ROOT / "benchmarks"
    runnable = [path for path in folder.glob("*.py") if '"__main__"' in path.read_text(encoding="utf-8")]
    found = {path.stem: path for path in runnable} | {path.parent.name: path for path in folder.glob("*/run.py")}
    return dict(sorted(found.items()))


def clean(_: list[str]) -> int:
    """Remove everything that git does not know; data and jobs outside the clone stay."""
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
    """Return the path of a command of the virtual environment."""
    return str(BIN / (f"{name}.exe" if os.name == "nt" else name))


def run(command: list[str], folder: Path = ROOT, environment: dict[str, str] | None = None) -> int:
    """Run a command in the foreground and return its exit code. Ctrl-C reaches the command too."""
    process = subprocess.Popen(command, cwd=folder, env=environment)
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            return process.wait()


def become(command: list[str]) -> int:
    """Replace this process by the command, so that signals and the exit code are its own; on Windows, run it."""
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
    "mutations": mutations,
    "test": test,
    "test-all": test_all,
    "test-nightly": test_nightly,
}

if __name__ == "__main__":
    sys.exit(main())
