"""Trained ensembles as boosters of XGBoost, by the JSON model schema of XGBoost 2.1, which 3.2 reads, too.

import shoal
from shoal.learn.trees import to_xgboost

booster = to_xgboost(shoal.load_model("model.safetensors"))    # a file of shoal export
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shoal.core.boosting.ensemble import LEAF, UNUSED_EDGE, Ensemble
from shoal.core.model.tree import Tree
from shoal.extras import not_installed

if TYPE_CHECKING:
    import xgboost

FORMAT = [2, 1, 0]
ROOT = 2**31 - 1
"""The parent of a root."""


def to_xgboost(model: Tree, feature_names: Sequence[str] | None = None) -> xgboost.Booster:
    """Return the booster that predicts as the ensemble does. Gains and covers of nodes are not known, and 0 in it.

    Raises `ShoalError` where xgboost is not installed, `InvalidPayload` for another model.
    """
    try:
        import xgboost
    except ModuleNotFoundError as error:
        raise not_installed(error, what="to_xgboost") from error
    booster = xgboost.Booster(model_file=bytearray(json.dumps(document(Ensemble.of(model))).encode()))
    if feature_names is not None:
        booster.feature_names = list(feature_names)
    return booster


def document(ensemble: Ensemble) -> dict[str, Any]:
    """Return the ensemble in XGBoost's schema."""
    trees = [_tree(ensemble, tree) for tree in range(ensemble.planted)]
    gbtree = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": list(range(len(trees) + 1)),
        "tree_info": [0] * len(trees),
        "trees": trees,
    }
    features = str(ensemble.features)
    return {
        "learner": {
            "attributes": {},
            "feature_names": [],
            "feature_types": [],
            "gradient_booster": {"model": gbtree, "name": "gbtree"},
            "learner_model_param": {
                "base_score": f"{float(ensemble.base_score[0]):.9g}",  # 2.1 takes longer texts for 0.5
                "boost_from_average": "0",
                "num_class": "0",
                "num_feature": features,
                "num_target": "1",
            },
            "objective": {"name": ensemble.objective, "reg_loss_param": {"scale_pos_weight": "1"}},
        },
        "version": FORMAT,
    }


def _tree(ensemble: Ensemble, tree: int) -> dict[str, Any]:
    """Return a decision tree: its nodes from the root down, without the unused ones of the heap."""
    feature, heap = ensemble.feature[tree], [0]
    for node in heap:  # it grows
        heap += [2 * node + 1, 2 * node + 2] if feature[node] != LEAF else []
    number = {node: place for place, node in enumerate(heap)}
    values = [float(ensemble.value[tree, node]) for node in heap]
    return {
        "base_weights": values,
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
        "default_left": [int(ensemble.missing_left[tree, node]) for node in heap],
        "id": tree,
        "left_children": [number.get(2 * node + 1, -1) for node in heap],
        "loss_changes": [0.0] * len(heap),
        "parents": [number.get((node - 1) // 2, ROOT) for node in heap],
        "right_children": [number.get(2 * node + 2, -1) for node in heap],
        "split_conditions": [_condition(ensemble, tree, node) for node in heap],
        "split_indices": [max(int(feature[node]), 0) for node in heap],
        "split_type": [0] * len(heap),
        "sum_hessian": [0.0] * len(heap),
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(ensemble.features),
            "num_nodes": str(len(heap)),
            "size_leaf_vector": "1",
        },
    }


def _condition(ensemble: Ensemble, tree: int, node: int) -> float:
    """Return the value of a leaf, or the value below which rows go left."""
    feature, last = int(ensemble.feature[tree, node]), int(ensemble.bin[tree, node])
    if feature == LEAF:
        return float(ensemble.value[tree, node])
    return float(ensemble.edges[feature, last]) if last < ensemble.bins - 1 else UNUSED_EDGE
