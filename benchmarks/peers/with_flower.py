"""Rounds of Flower's deployment runtime: a SuperLink, a SuperNode for each client, and `flwr run`, with their defaults.

They use plain HTTP, and do not install what the application needs: its environment has it. Clients do not evaluate.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from cell import CLIENT, SERVER, Cell, read_cell, start, watch

HERE, BIN = Path(__file__).resolve().parent, Path(sys.executable).parent
PROJECT = """
[project]
name = "peers"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "peers"
[tool.flwr.app.components]
serverapp = "flower_app:server"
clientapp = "flower_app:client"
[tool.flwr.app.config]
nodes = {nodes}
rounds = {rounds}
numbers = {numbers}
"""
CONNECTION = """
[superlink]
default = "peers"
[superlink.peers]
address = "127.0.0.1:{port}"
insecure = true
"""


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


def await_port(port: int, due: float) -> None:
    """Wait until the SuperLink listens."""
    while time.monotonic() < due:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)


def write_app(cell: Cell, port: int) -> Path:
    """Write the application and the user's settings of Flower, all in the cell's folder."""
    app, home = cell.folder / "app", cell.folder / "home"
    app.mkdir()
    home.mkdir()
    for name in ("flower_app.py", "cell.py"):
        shutil.copy(HERE / name, app)
    values = {"nodes": cell.nodes, "rounds": cell.rounds_to_run, "numbers": cell.numbers}
    (app / "pyproject.toml").write_text(PROJECT.format(**values))
    (home / "config.toml").write_text(CONNECTION.format(port=port))
    os.environ.update(FLWR_HOME=str(home), FLWR_TELEMETRY_ENABLED="0")
    os.environ["PATH"] = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
    return app


def main() -> None:
    """Start the SuperLink and the SuperNodes, submit the application, and watch."""
    cell, port = read_cell(), free_port()
    app = write_app(cell, port)
    options = ["--insecure", "--disable-runtime-dependency-installation", "--port", str(port)]
    started = [start(cell, SERVER, "superlink", [str(BIN / "flower-superlink"), *options])]
    for number in range(cell.nodes):
        command = [str(BIN / "flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}"]
        started.append(start(cell, CLIENT, f"client-{number}", [*command, "--port", str(free_port())]))
    await_port(port, time.monotonic() + cell.seconds)
    submitted = start(cell, "", "submit", [str(BIN / "flwr"), "run", str(app)])
    watch(cell, [*started, submitted])


if __name__ == "__main__":
    main()
