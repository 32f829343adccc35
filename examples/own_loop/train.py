"""A training script as a node of a federated job. Node number `part` of three has a third of the digits.

python train.py                                       all three, simulated in this process
python train.py --url URL --token sht_… --part 0      one of them, at a coordinator
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shoal
from shoal.learn.data.bundled import digits

job = shoal.load_job(Path(__file__).with_name("job.toml"))
images, labels = (torch.tensor(array) for array in digits())
data = TensorDataset(images / 16, labels.long())
test = TensorDataset(*data[1500:])


def fit(model: nn.Module, train: TensorDataset, epochs: int, batch_size: int, lr: float) -> float:
    """Train as the script did before; return the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(epochs):
        for x, y in DataLoader(train, batch_size, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    return loss.item()


def measure(model: nn.Module) -> dict[str, float]:
    x, y = test[:]
    return {"accuracy": (model(x).argmax(1) == y).float().mean().item(), "examples": len(y)}


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    for name in ("--url", "--token", "--part", "--state"):
        options.add_argument(name)
    given = options.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    if given.url:
        state = given.state and Path(given.state)
        place = shoal.join(given.url, token=given.token, name=f"part-{given.part}", jobs=[job.name], state_dir=state)
    else:
        place = shoal.simulated(job, nodes=3)
    with place as node:
        for task in node.tasks(model, evaluate=measure):
            part = int(given.part or task.index)
            train = TensorDataset(*data[part:1500:3])
            loss = fit(model, train, task.epochs, task.batch_size, task.lr)
            task.report(model, examples=len(train), metrics={"loss": loss})
    print(node.result if not given.url else "the job has ended")
