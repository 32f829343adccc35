"""The report of a cascade: counts, accuracy and bytes of each level."""

from __future__ import annotations

import numpy as np

from shoal.core.exits.byte_costs import Hop
from shoal.core.exits.cascade_level import CascadeAnswer
from shoal.core.exits.cascade_report import LevelReport, report_levels


def test_a_degraded_answer_has_cost_the_bytes_of_its_features() -> None:
    exits, degraded = np.array([0, 0, 1, 1, 2]), np.array([False, True, False, True, False])
    found = report_levels(
        ("device", "edge", "cloud"),
        CascadeAnswer(np.zeros(5, np.int64), exits, degraded),
        np.array([True, False, True, True, False]),
        [Hop(2, scores=12, features=5), Hop(features=7)],
    )
    assert found == [
        LevelReport("device", 2, 0.4, 0.5, 1, 2 * (5 * 12 + 4 * 5)),
        LevelReport("edge", 2, 0.4, 1.0, 1, 2 * 7),
        LevelReport("cloud", 1, 0.2, 0.0, 0, 0),
    ]


def test_a_level_without_answers_has_no_accuracy() -> None:
    answer = CascadeAnswer(np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(2, np.bool_))
    assert report_levels(("device", "cloud"), answer, np.array([True, True]), [Hop(features=7)])[1] == LevelReport(
        "cloud", 0, 0.0, None, 0, 0
    )
