"""A virtual environment for each framework, made once and kept, with pinned packages; shoal's own is not touched."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

PACKAGES = {
    "flower": ("flwr==1.42.0", "numpy==2.4.6", "psutil==7.2.2"),
    "nvflare": ("nvflare==2.9.0", "numpy==2.4.6", "psutil==7.2.2"),
    "pfl": ("pfl==0.6.0", "torch==2.13.0", "numpy==2.4.6", "psutil==7.2.2"),
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
