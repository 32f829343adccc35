"""Gradient-boosted decision trees on tables: `TreesLearner`, and `to_xgboost` for what was trained."""

from shoal.learn.trees.booster import to_xgboost
from shoal.learn.trees.trees_learner import TreesLearner, predict

__all__ = ["TreesLearner", "predict", "to_xgboost"]
