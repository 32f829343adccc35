"""Rounds of NVFlare's proof of concept: a server and clients provisioned on this machine, a FedAvg recipe, defaults.

The model is one array of ten rows: its numpy persistor keeps a single array. It stores every version as a file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import psutil
from cell import CLIENT, SERVER, layers, read_cell, watch

HERE = Path(__file__).resolve().parent


def role_of(process: psutil.Process) -> str:
    """Return the role by the folder that the process was started for."""
    words = " ".join(process.cmdline())
    if "/site-" in words:
        return CLIENT
    return SERVER if "/server" in words else ""


def main() -> None:
    """Start the services, submit the job, and watch."""
    cell = read_cell()
    os.environ["NVFLARE_POC_WORKSPACE"] = str(cell.folder / "poc")
    os.environ["HOME"] = str(cell.folder)  # where it keeps the user's settings
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
    from nvflare.recipe.poc_env import PocEnv

    start = cell.folder / "start.npy"
    with start.open("wb") as file:
        np.lib.format.write_array(file, np.stack(layers(cell)), allow_pickle=False)
    recipe = NumpyFedAvgRecipe(
        name="peers",
        initial_ckpt=str(start),
        min_clients=cell.nodes,
        num_rounds=cell.rounds_to_run,
        train_script=str(HERE / "nvflare_client.py"),
    )
    os.chdir(cell.folder)
    recipe.execute(PocEnv(num_clients=cell.nodes))
    watch(cell, [], role_of)


if __name__ == "__main__":
    main()
