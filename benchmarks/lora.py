"""Adapters trained by four nodes, beside the same number of steps on the union of their data.

python benchmarks/lora.py --seeds 1 2 3

The model is that of examples/lora_text: a small BERT, and LoRA of rank 4 on its queries and values. Federated: FedAvg,
10 steps of 16 examples at each node and round. Central: as many steps of 64 examples. AdamW in both, whose state is
kept. A tenth of the labels is wrong, so that the loss has a floor. Printed: loss and accuracy on 2,000 held-out
sentences, without a filter and with updates of 8 bits, and the bytes that a node sends in a round.
"""

from __future__ import annotations

import sys
import warnings
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from harness import arguments, show

sys.path.append(str(Path(__file__).parents[1] / "examples" / "lora_text"))
warnings.simplefilter("ignore", FutureWarning)

NODES, EXAMPLES, STEPS, BATCH = 4, 1600, 10, 16


def noisy(given: list[Any], fraction: float, seed: int) -> list[Any]:
    """Turn this fraction of the labels."""
    random = Random(seed)
    return [(text, first, last ^ (random.random() < fraction)) for text, first, last in given]


def learner(examples: list[Any], test: list[Any]) -> Any:
    """Return a learner of the example's model."""
    import learner as example
    from transformers import AutoTokenizer, TrainingArguments

    from shoal.learn.hf import HFLearner

    tokenizer = AutoTokenizer.from_pretrained(example.BASE)
    made = [[{**tokenizer(text), "labels": last} for text, _, last in given] for given in (examples, test)]
    args = TrainingArguments(lr_scheduler_type="constant", use_cpu=True, per_device_eval_batch_size=100)
    more = {"processing_class": tokenizer, "compute_metrics": example.accuracy, "keep_optimizer": True}
    return HFLearner(lambda: example.adapted(example.BASE), args, made[0], made[1], **more)


def central(parts: list[list[Any]], test: list[Any], rounds: int, lr: float, seed: int) -> dict[str, float]:
    """Train on the union."""
    from shoal.core.algorithm.learner import TrainConfig

    whole = learner(list(chain(*parts)), test)
    whole.init(seed)
    whole.train(TrainConfig(steps=rounds * STEPS, batch_size=NODES * BATCH, lr=lr, seed=seed))
    return dict(whole.evaluate())


def federated(parts: list[list[Any]], test: list[Any], rounds: int, lr: float, seed: int, filters: list[Any]) -> Any:
    """Train at the nodes."""
    import shoal
    from shoal.jobs.spec import parse_job

    algorithm = {"name": "fedavg", "epochs": STEPS * BATCH / EXAMPLES, "batch_size": BATCH, "lr": lr}
    job = parse_job({"name": "lora", "rounds": rounds, "seed": seed, "algorithm": algorithm, "filters": filters})
    nodes = [learner(part, test[:10]) for part in parts]
    made = shoal.simulate(job, nodes)
    judge = learner(test[:10], test)
    judge.load(made.model)
    return {**judge.evaluate(), "bytes": made.up_bytes["node-1"] / rounds}


def main() -> int:
    """Measure, and print."""
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--noise", type=float, default=0.1, help="fraction of labels that are wrong")
    options = parser.parse_args()
    import transformers
    from make_base import BASE, make_base
    from reviews import reviews

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if not BASE.exists():
        make_base()
    rows = []
    for seed in options.seeds:
        parts = [noisy(reviews(EXAMPLES, seed=100 * seed + part), options.noise, part) for part in range(NODES)]
        test = noisy(reviews(2000, seed=100 * seed + 99), options.noise, NODES)
        given = options.rounds, options.lr, seed
        found = {
            "central": central(parts, test, *given),
            "federated": federated(parts, test, *given, []),
            "8 bits": federated(parts, test, *given, [{"name": "quantize"}]),
        }
        for name, one in found.items():
            rows.append(
                {
                    "seed": seed,
                    "training": name,
                    "loss": one["eval/loss"],
                    "of_central": one["eval/loss"] / found["central"]["eval/loss"],
                    "accuracy": one["eval/accuracy"],
                    "bytes_per_round": one.get("bytes", 0.0),
                }
            )
            print(rows[-1], file=sys.stderr, flush=True)
    show(f"adapters, {options.rounds * STEPS} steps", rows, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
