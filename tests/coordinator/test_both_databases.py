"""Tests of other files that run on SQLite there, and on PostgreSQL here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.coordinator.test_alerts import test_an_alert_is_acknowledged_by_operators
from tests.coordinator.test_event_stream import test_a_replay_is_the_feed
from tests.coordinator.test_failures import (
    stage,
    test_pages_and_filters,
    test_the_oldest_are_forgotten,
    test_who_failed_how_far_and_why,
)
from tests.coordinator.test_job_removal import test_another_job_may_have_the_name_at_once
from tests.coordinator.test_jobs import test_the_model_is_the_predicted_one, test_what_is_told_of_a_job_is_so
from tests.coordinator.test_journal import (
    test_a_deadline_rings_also_after_a_restart,
    test_a_restart_restores_the_hub,
    test_events_that_come_together_share_a_commit,
    test_the_journal_is_trimmed,
)
from tests.coordinator.test_logs import (
    node,
    test_a_batch_that_comes_twice_is_kept_once_also_after_a_restart,
    test_a_text_is_found_wherever_it_stands,
    test_levels_jobs_nodes_and_pages,
    test_lines_go_by_age_and_by_size,
)
from tests.coordinator.test_node_influence import (
    test_fairness_is_by_each_nodes_last_report,
    test_refusals_are_counted_by_node_with_the_limits_that_hold,
)
from tests.coordinator.test_reports import (
    filled,
    test_a_report_that_is_sent_again_is_one,
    test_a_round_while_it_is_open_and_when_it_has_closed,
    test_one_clients_line,
    test_only_the_newest_are_kept,
    test_report_bytes_equal_the_counted_traffic,
    test_reports_are_paged_both_ways,
    test_the_bands,
    test_the_heat_map,
    test_the_heat_map_is_thinned_and_paged,
    test_what_diverged_is_told_whatever_is_thinned,
)
from tests.coordinator.test_retention import test_updates_stay_where_they_should
from tests.coordinator.test_tags_and_switches import test_tags_are_kept_told_and_changed
from tests.coordinator.test_traffic import test_the_parts_make_the_whole
from tests.coordinator.test_trust_documents import (
    test_counted_bytes_survive_a_crash,
    test_trust_documents_survive_a_restart,
)
from tests.support import coordinator as coordinators
from tests.support.postgres import Cluster

__all__ = [
    "filled",
    "node",
    "stage",
    "test_a_batch_that_comes_twice_is_kept_once_also_after_a_restart",
    "test_a_deadline_rings_also_after_a_restart",
    "test_a_replay_is_the_feed",
    "test_a_report_that_is_sent_again_is_one",
    "test_a_restart_restores_the_hub",
    "test_a_round_while_it_is_open_and_when_it_has_closed",
    "test_a_text_is_found_wherever_it_stands",
    "test_an_alert_is_acknowledged_by_operators",
    "test_another_job_may_have_the_name_at_once",
    "test_counted_bytes_survive_a_crash",
    "test_events_that_come_together_share_a_commit",
    "test_fairness_is_by_each_nodes_last_report",
    "test_levels_jobs_nodes_and_pages",
    "test_lines_go_by_age_and_by_size",
    "test_one_clients_line",
    "test_only_the_newest_are_kept",
    "test_pages_and_filters",
    "test_refusals_are_counted_by_node_with_the_limits_that_hold",
    "test_report_bytes_equal_the_counted_traffic",
    "test_reports_are_paged_both_ways",
    "test_tags_are_kept_told_and_changed",
    "test_the_bands",
    "test_the_heat_map",
    "test_the_heat_map_is_thinned_and_paged",
    "test_the_journal_is_trimmed",
    "test_the_model_is_the_predicted_one",
    "test_the_oldest_are_forgotten",
    "test_the_parts_make_the_whole",
    "test_trust_documents_survive_a_restart",
    "test_updates_stay_where_they_should",
    "test_what_diverged_is_told_whatever_is_thinned",
    "test_what_is_told_of_a_job_is_so",
    "test_who_failed_how_far_and_why",
]


@pytest.fixture(autouse=True)
def on_postgres(cluster: Cluster) -> Iterator[None]:
    """Each folder's coordinators have a database of the server's."""
    made: dict[Path, str] = {}

    def where(folder: Path) -> str:
        if folder not in made:
            made[folder] = cluster.database()
        return made[folder]

    coordinators.ELSEWHERE.append(where)
    yield
    coordinators.ELSEWHERE.remove(where)
