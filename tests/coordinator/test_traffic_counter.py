"""The counter of bytes: what is told twice, or at both ends, counts once."""

from shoal_coordinator.telemetry.traffic import Label, Mark, TrafficCounter


def totals(counter: TrafficCounter) -> tuple[int, int]:
    """Return the bytes of the job in both directions."""
    return counter.totals["main", "up"], counter.totals["main", "down"]


def test_bytes_between_two_peers_count_once() -> None:
    counter = TrafficCounter()
    counter.count_gossip("main", 0, "a", Mark(1, 2, sent=100, received=40))
    counter.count_gossip("main", 0, "b", Mark(1, 2, sent=40, received=100))
    assert totals(counter) == (140, 0)
    assert counter.of_node["main", "a", "down"] == 40


def test_sums_add_what_is_new_in_them() -> None:
    counter = TrafficCounter()
    for sums in (Mark(1, 1, 100, 0), Mark(1, 1, 100, 0), Mark(1, 3, 130, 0), Mark(1, 2, 120, 0), Mark(2, 1, 7, 0)):
        counter.count_gossip("main", 0, "a", sums)
    assert totals(counter) == (137, 0)
    counter.count_gossip("main", 0, "a", Mark(1, 9, 900, 0))
    assert totals(counter) == (137, 0), "it is of an earlier process"


def test_a_transfer_that_is_reported_again_counts_once() -> None:
    counter = TrafficCounter()
    for node, number in (("a", "1"), ("a", "1"), ("b", "1"), ("a", "2")):
        counter.count_transfer(Label("main", 0, node, "blob"), number, 1, (10, 100), (1, 2))
    assert totals(counter) == (330, 9)
