"""The application that Flower runs: federated averaging, and a client that adds one number. Copied into a folder of its
own by `with_flower.py`, with `cell.py`.
"""

from __future__ import annotations

import numpy as np
from cell import mark
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

server = ServerApp()
client = ClientApp()


class Marked(FedAvg):
    """FedAvg that notes when a round begins."""

    def configure_train(self, *arguments: object, **named: object) -> object:
        mark()
        return super().configure_train(*arguments, **named)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    nodes, rounds = int(context.run_config["nodes"]), int(context.run_config["rounds"])
    draw = np.random.default_rng(0)
    model = [draw.standard_normal(int(context.run_config["numbers"]), np.float32) for _ in range(10)]
    strategy = Marked(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    strategy.start(grid, ArrayRecord(model), num_rounds=rounds)


@client.train()
def train(message: Message, _: Context) -> Message:
    model = [layer + np.float32(1e-6) for layer in message.content["arrays"].to_numpy_ndarrays()]
    content = {"arrays": ArrayRecord(model), "metrics": MetricRecord({"num-examples": 1})}
    return Message(content=RecordDict(content), reply_to=message)
