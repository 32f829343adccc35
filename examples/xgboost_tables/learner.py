"""Boosted trees on a CSV file. Node number `part` of `parts` trains on its part of 800 loans, which are invented.

shoal simulate job.toml -o model.safetensors
python learner.py model.safetensors
"""

import sys
from pathlib import Path

import numpy as np

import shoal
from shoal.learn.data.partition import iid, train_test_split
from shoal.learn.trees import TreesLearner, to_xgboost

CSV = Path(__file__).with_name("loans.csv")
names = CSV.open().readline().strip().split(",")[:-1]
table = np.genfromtxt(CSV, delimiter=",", skip_header=1)  # an empty cell is NaN: missing
x, y = table[:, :-1], table[:, -1]


def learner(part: int = 0, parts: int = 4) -> TreesLearner:
    train, test = train_test_split(iid(len(y), parts)[part], test_fraction=0.2)
    return TreesLearner((x[train], y[train]), (x[test], y[test]), trees=20, depth=3)


if __name__ == "__main__":
    booster = to_xgboost(shoal.load_model(sys.argv[1]), names)
    booster.save_model("booster.json")
    print(booster.get_score(importance_type="weight"))
