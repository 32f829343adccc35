"""Simulated clients per processor second of Flower, on `simulated_work.py`: give the network and the number of clients.

Flower's simulation engine, with one processor for each of Ray's workers. The first round, in which the workers start,
is not counted; the best of the others is. Processor seconds are those of all of Ray's processes.
"""

from __future__ import annotations

import json
import os
import sys
from functools import lru_cache
from itertools import pairwise

os.environ.update(OMP_NUM_THREADS="1", FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")

import psutil
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from simulated_work import BATCH, LR, NETWORKS, examples

NETWORK, CLIENTS, ROUNDS = sys.argv[1], int(sys.argv[2]), 3

server, client = ServerApp(), ClientApp()
own = lru_cache(examples)


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train the network that came for one pass, and return it."""
    torch.set_num_threads(1)
    network = NETWORKS[NETWORK]()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(network.parameters(), lr=LR)
    x, y = own(int(context.node_config["partition-id"]))
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


def cpu_s() -> float:
    """Return the processor seconds of this process and of all below it."""
    this = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in [this, *this.children(recursive=True)])


@server.main()
def serve(grid: Grid, _: Context) -> None:
    """Run the rounds, and print."""
    timed = Timed()
    timed.start(grid, ArrayRecord(NETWORKS[NETWORK]().state_dict()), num_rounds=ROUNDS)
    timed.at.append(cpu_s())
    best = min(later - earlier for earlier, later in pairwise(timed.at[1:]))
    print(json.dumps({"per_cpu_s": CLIENTS / best}), flush=True)


if __name__ == "__main__":
    run_simulation(server, client, num_supernodes=CLIENTS, backend_config={"client_resources": {"num_cpus": 1}})
