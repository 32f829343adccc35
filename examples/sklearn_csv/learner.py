"""Logistic regression of scikit-learn on a CSV file. Each node has the patients of one clinic."""

from pathlib import Path

import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from shoal.learn import SklearnLearner
from shoal.learn.data.partition import train_test_split
from shoal.learn.data.table import table

CLINICS = ["north", "south", "east", "west"]
x, y = table(
    Path(__file__).with_name("patients.csv"),
    target="outcome",
    columns=["clinic", "age", "bmi", "pressure", "sex", "smoker"],
    categories={"clinic": CLINICS, "sex": ["f", "m"], "smoker": ["never", "former", "now"]},
    classes=["well", "ill"],
    fill={"bmi": 26},
)
clinic, x = x[:, : len(CLINICS)].argmax(1), x[:, len(CLINICS) :]

scaler = StandardScaler()  # by numbers that all nodes know: a scaler fitted by each would differ
scaler.mean_, scaler.scale_ = np.array([55, 26, 125, *[0] * 5]), np.array([20, 4, 15, *[1] * 5])


def learner(part: int = 0) -> SklearnLearner:
    train, test = train_test_split(np.flatnonzero(clinic == part), test_fraction=0.25)
    model = make_pipeline(scaler, SGDClassifier(loss="log_loss", learning_rate="constant"))
    return SklearnLearner(model, (x[train], y[train]), (x[test], y[test]), classes=[0, 1])
