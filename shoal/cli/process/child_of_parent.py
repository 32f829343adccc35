"""`python -m shoal.cli.process.child_of_parent ARGS`: `shoal ARGS` that ends with its parent process.

Without this, `kill -9` of the demo would leave its coordinator and clients behind for ever. SHOAL_DEMO_PARENT is the
process to end with: by the time that a child could ask, its parent may be gone. SHOAL_DEMO_IMPORTS names modules to
import while the parent is still busy, so that all processes start at the same time.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from contextlib import suppress

LOOK_S = 0.5
GRACE_S = 5.0
PARENT, IMPORTS = "SHOAL_DEMO_PARENT", "SHOAL_DEMO_IMPORTS"


def end_with_parent(parent: int) -> None:
    """End this process when its parent has ended: gracefully, then at once."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)


def main() -> None:
    """Tie this process to its parent, then run `shoal`."""
    parent = int(os.environ.get(PARENT) or os.getppid())
    threading.Thread(target=end_with_parent, args=(parent,), name="tether", daemon=True).start()
    for module in os.environ.get(IMPORTS, "").split():
        with suppress(ImportError):  # the command itself says what is missing
            importlib.import_module(module)
    from shoal.cli import main as shoal

    shoal()


if __name__ == "__main__":
    main()
