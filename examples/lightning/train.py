"""A Lightning script as a node of a federated job. Node number `part` of three has a third of the digits.

python train.py                                       all three, simulated in this process
python train.py --url URL --token sht_… --part 0      one of them, at a coordinator
"""

import argparse
import logging
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import shoal
import shoal.lightning
from shoal.learn.data.bundled import digits

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
job = shoal.load_job(Path(__file__).with_name("job.toml"))
images, labels = (torch.tensor(array) for array in digits())
data = TensorDataset(images / 16, labels.long())
test = data[1500:]


class Classifier(LightningModule):
    """A network for digits, with its loss and its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.lr = 0.01

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), self.lr)


def measure(model: Classifier) -> dict[str, float]:
    right = model.network(test[0]).argmax(1) == test[1]
    return {"accuracy": right.float().mean().item(), "examples": len(right)}


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    for name in ("--url", "--token", "--part"):
        options.add_argument(name)
    given = options.parse_args()

    torch.manual_seed(0)
    model = Classifier()
    if given.url:
        place = shoal.join(given.url, token=given.token, name=f"part-{given.part}", jobs=[job.name])
    else:
        place = shoal.simulated(job, nodes=3)
    with place as node:
        for task in node.tasks(model, evaluate=measure):
            part, model.lr = int(given.part or task.index), task.lr
            train = TensorDataset(*data[part:1500:3])
            trainer = Trainer(
                max_epochs=task.epochs,
                callbacks=[shoal.lightning.Callback(task)],
                accelerator="cpu",
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(model, DataLoader(train, task.batch_size, shuffle=True))
            task.report(model, examples=len(train), metrics=trainer.callback_metrics)
    print(node.result if not given.url else "the job has ended")
