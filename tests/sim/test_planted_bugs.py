"""The checkers are checked: each planted bug breaks a run of the swarm, and without a bug none does."""

import pytest

from shoal.sim.scenarios.swarm import SeedFailed, run_seed
from tests.sim.planted_bugs import MUTANTS

SEEDS_MAX = 1500
HARD = (29, 67, 98, 110, 342, 429, 796, 24, 35, 52, 220)
"""Seeds that found, when this was written, the bugs that few others find: they come first, to save time."""

FOUND_BY = {
    "acknowledged_before_commit": "kept|ends",
    "alarm_not_set_again_after_restart": "ends",
    "amendments_not_passed_on": "ends",
    "base_not_restored": "replay",
    "blobs_of_gathered_reports_swept": "was dropped",
    "blobs_remembered_by_id": "task|replay",
    "deadline_compared_strictly": "ends",
    "deadline_never_rings": "ends",
    "examples_counted_on_after_a_synchronization": "weight",
    "fed_before_commit": "kept|replay",
    "finished_order_begun_again": "memory",
    "handed_back_order_stays_asked": "ends",
    "hub_goes_on_with_what_filters_lost": "sum|held",
    "late_idle_cancels_a_newer_order": "ends",
    "late_updates_not_fenced": "fresh|task|once",
    "leases_not_granted_again_after_restart": "ends",
    "mean_added_to_the_last_version": "sum",
    "memory_committed_before_the_acknowledgement": "memory",
    "memory_committed_though_not_counted": "memory",
    "memory_dropped_by_the_next_order": "memory",
    "no_dedupe": "once|ends",
    "order_given_once": "ends",
    "task_ids_issued_again": "task",
    "orders_kept_at_a_full_synchronization": "fresh",
    "orders_withdrawn_by_a_balancing": "stands",
    "packed_model_forgotten_by_the_snapshot": "replay",
    "reference_changed_by_a_balancing": "held",
    "reference_kept_at_a_full_synchronization": "held|sum",
    "repeated_report_answered_differently": "memory",
    "replayed_at_another_time": "replay",
    "report_not_spooled": "memory",
    "said_once": "ends",
    "snapshot_without_the_open_round": "replay",
    "status_forgotten_by_the_snapshot": "replay",
    "status_not_answered": "ends",
    "status_of_an_old_order_accepted": "step",
    "status_said_once": "ends",
    "sum_in_single_precision_and_order": "sum",
    "unweighted_mean": "sum",
    "weight_forgotten_by_the_record": "sum",
}
"""The invariants that may find each."""


def test_every_mutant_is_expected() -> None:
    assert sorted(MUTANTS) == sorted(FOUND_BY)


@pytest.mark.parametrize("name", sorted(FOUND_BY))
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(SeedFailed, match=rf"^seed \d+: \w+: .*({FOUND_BY[name]})"):
        run_all()


def run_all() -> None:
    for seed in (*HARD, *range(SEEDS_MAX)):
        run_seed(seed)
