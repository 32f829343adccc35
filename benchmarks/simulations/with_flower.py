"""Simulated clients per processor second of Flower, on `simulated_work.py`: give the network and the number of clients.

Flower's simulation engine, with one processor for each of Ray's workers. The first round, in which the workers start,
is not counted. Processor seconds are those of all of Ray's processes, of which some end between rounds: they are looked
at several times a second, and the last value of each counts.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

os.environ.update(OMP_NUM_THREADS="1", FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")

import psutil
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from simulated_work import BATCH, LR, NETWORKS, kept_examples

NETWORK, CLIENTS, ROUNDS = sys.argv[1], int(sys.argv[2]), 3

server, client = ServerApp(), ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train the network that came for one pass, and return it."""
    torch.set_num_threads(1)
    network = NETWORKS[NETWORK]()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(network.parameters(), lr=LR)
    x, y = kept_examples(int(context.node_config["partition-id"]))
    for chosen in torch.randperm(len(y)).split(BATCH):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x[chosen]), y[chosen]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(content), reply_to=message)


class Timed(FedAvg):
    """FedAvg that prints the processor seconds of a client when the rounds are done."""

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        self.at: list[float] = []

    def configure_train(self, *arguments: object, **named: object) -> object:
        self.at.append(cpu_s())
        return super().configure_train(*arguments, **named)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> object:
        found = list(replies)
        if failed := [one for one in found if one.has_error()]:
            raise RuntimeError(f"{len(failed)} of {CLIENTS} clients failed: {failed[0].error}")
        return super().aggregate_train(server_round, found)


USED: dict[psutil.Process, float] = {}
"""Processor seconds of this process and of all below it, as of their last sight."""
USED_LOCK = threading.Lock()
LOOK_S = 0.2


def cpu_s() -> float:
    """Return the processor seconds of this process and of all that were ever seen below it."""
    this = psutil.Process()
    with USED_LOCK:
        for one in [this, *this.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                USED[one] = sum(one.cpu_times()[:2])
        return sum(USED.values())


def look_often() -> None:
    """Look at the processes while this one runs; the body of a thread."""
    while True:
        cpu_s()
        time.sleep(LOOK_S)


@server.main()
def serve(grid: Grid, _: Context) -> None:
    """Run the rounds, and print."""
    threading.Thread(target=look_often, daemon=True).start()
    timed = Timed()
    timed.start(grid, ArrayRecord(NETWORKS[NETWORK]().state_dict()), num_rounds=ROUNDS)
    timed.at.append(cpu_s())
    used = timed.at[-1] - timed.at[1]
    print(json.dumps({"per_cpu_s": CLIENTS * (ROUNDS - 1) / used}), flush=True)


if __name__ == "__main__":
    run_simulation(server, client, num_supernodes=CLIENTS, backend_config={"client_resources": {"num_cpus": 1}})
