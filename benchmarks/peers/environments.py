"""A virtual environment for each framework, made once and kept, with pinned packages, and programs that run there.
shoal's own is not touched.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cell import TAG, end

CACHE = Path.home() / ".cache" / "shoal" / "benchmarks"
"""The usual folder of the environments."""
FAILURES = (RuntimeError, OSError, ValueError, subprocess.SubprocessError)
"""Errors of a framework that cannot be installed or that fails."""

PACKAGES = {
    "flower": ("flwr==1.42.0", "numpy==2.4.6", "psutil==7.2.2"),
    "nvflare": ("nvflare==2.9.0", "numpy==2.4.6", "psutil==7.2.2"),
    "pfl": ("pfl==0.6.0", "torch==2.13.0", "numpy==2.4.6", "psutil==7.2.2"),
    "flower_simulation": ("flwr[simulation]==1.42.0", "torch==2.13.0", "numpy==2.4.6", "psutil==7.2.2"),
    "picture": ("matplotlib==3.11.2",),
}
"""The packages of each; pip takes them from the index that it is configured for."""
INSTALL_S = 900
DONE = "installed.txt"


def python_of(name: str, folder: Path) -> str:
    """Return the interpreter to run this framework with; its environment is made at the first call."""
    if name not in PACKAGES:  # shoal and the floor
        return sys.executable
    home, wanted = folder / name, "\n".join(PACKAGES[name])
    python, done = home / "bin" / "python", home / DONE
    if not done.exists() or done.read_text() != wanted:
        print(f"installing {' '.join(PACKAGES[name])} in {home}", file=sys.stderr)
        venv.create(home, clear=True, with_pip=True, symlinks=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES[name]]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        if asked.returncode:
            raise RuntimeError(f"pip: {asked.stderr.strip()[-300:]}")
        done.write_text(wanted)
    return str(python)


def output_of(
    framework: str, program: Path, arguments: Sequence[str], environments: Path, limit_s: float
) -> dict[str, Any]:
    """Run a program in a framework's environment, and return what it printed last. Raises one of `FAILURES`."""
    command = [python_of(framework, environments), str(program), *arguments]
    tag = f"{os.getpid()}-{framework}"
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or framework not in PACKAGES}
    process = subprocess.Popen(
        command, env={**given, TAG: tag}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        text, wrong = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no result in {limit_s:.0f} s") from None
    finally:
        process.kill()
        end(tag)
    if process.returncode:
        raise RuntimeError(wrong.strip() or f"ended with {process.returncode}")
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return found


def error_line(error: BaseException) -> str:
    """Return an error as the end of one line."""
    return " ".join(str(error).split())[-300:]
