"""Apply each mutation of `tests/mutations.toml` to a copy of the source tree, and show that its tests fail there.

python -m tests.support.mutations            all mutations
python -m tests.support.mutations WORD …     those whose promise, change or file contains each of the words

Before, all these tests must pass in a copy without a mutation. The working tree stays as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import dev
from tests.conventions.sources import files

FILE = Path(__file__).parents[1] / "mutations.toml"
PACKAGES = ("", "coordinator", "edge_client", "peer", "dashboard")
BUILT = ("dashboard/node_modules", "dashboard/shoal_dashboard/static")
FAILED = 1
"""Exit code of pytest and of vitest when tests ran and failed; others say that they did not run."""


@dataclass(frozen=True)
class Mutation:
    """A change of the product that breaks a promise, and the tests of `make test` that fail for it."""

    promise: str
    change: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, folder: Path) -> None:
        """Change the file below a folder."""
        path = folder / self.file
        source = path.read_text(encoding="utf-8")
        assert source.count(self.old) == 1, f"{self.file} does not contain this text exactly once: {self.old}"
        path.write_text(source.replace(self.old, self.new), encoding="utf-8")


def mutations(file: Path = FILE) -> list[Mutation]:
    """Return all mutations of the file, in its order."""
    found = tomllib.loads(file.read_text(encoding="utf-8"))["mutation"]
    return [Mutation(**{**one, "tests": tuple(one["tests"])}) for one in found]


def copy_sources(folder: Path) -> None:
    """Copy all files that git knows or would add; link what was built."""
    for path in files(dev.ROOT):
        copied = folder / path.relative_to(dev.ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copied)
    for name in BUILT:
        if (dev.ROOT / name).is_dir():
            (folder / name).symlink_to(dev.ROOT / name)


def run_tests(folder: Path, tests: Iterable[str]) -> tuple[int, str]:
    """Run tests in a copy of the source tree until one fails; return the exit code and the output."""
    of_pages = [test.removeprefix("dashboard/") for test in tests if test.startswith("dashboard/")]
    of_python = [test for test in tests if not test.startswith("dashboard/")]
    code, said = 0, ""
    if of_pages:
        _, command, _, environment = dev.npm_step("test", *of_pages)
        code, said = run(command, folder / "dashboard", {**(environment or {}), "NO_COLOR": "1"})
    if of_python and not code:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "required", "-p", "no:cacheprovider", *of_python]
        path = os.pathsep.join(str(folder / name) for name in PACKAGES)
        code, said = run(command, folder, {**os.environ, "PYTHONPATH": path})
    return code, said


def run(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run a command; return its exit code and its output."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def fails_under(mutation: Mutation) -> bool:
    """Return whether the tests of a mutation fail in a copy that has it; print the first line that says why."""
    with tempfile.TemporaryDirectory() as folder:
        copy_sources(Path(folder))
        mutation.apply(Path(folder))
        started = time.monotonic()
        code, said = run_tests(Path(folder), mutation.tests)
        seconds = time.monotonic() - started
    causes = [line for line in said.splitlines() if line.startswith(("E  ", "AssertionError"))]
    verdict = "caught" if code == FAILED else f"ESCAPES (exit code {code})"
    print(f"{verdict}  {mutation.change}  {seconds:.0f} s", *causes[:1], sep="\n        ", flush=True)
    return code == FAILED


def main(words: list[str]) -> int:
    """Run the mutations that contain all words; return an exit code."""
    chosen = [one for one in mutations() if all(word in f"{one.promise} {one.change} {one.file}" for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        copy_sources(Path(folder))
        code, said = run_tests(Path(folder), sorted({test for one in chosen for test in one.tests}))
    if code or not chosen:
        print(said or "no mutation has these words")
        return 1
    caught = sum([fails_under(one) for one in chosen])
    print(f"{caught} of {len(chosen)} mutations are caught")
    return int(caught < len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
