"""The window lets each number in once, in any order that stays within its width."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import NotAllowed
from shoal.trust.window import WIDTH, ReplayWindow

STEPS = st.integers(-2 * WIDTH, 2 * WIDTH)


class Model:
    """A reference for the window, with a set that forgets nothing."""

    def __init__(self) -> None:
        self.process_number, self.seen = 0, set[int]()

    def verdict(self, process_number: int, seq: int) -> str:
        if process_number < self.process_number:
            return "trust.process-old"
        seen = self.seen if process_number == self.process_number else set()
        if seq in seen or seq <= max(seen, default=0) - WIDTH:
            return "trust.replayed"
        self.process_number, self.seen = process_number, seen | {seq}
        return "taken"


def verdict(window: ReplayWindow, process_number: int, seq: int) -> tuple[str, ReplayWindow]:
    try:
        return "taken", window.after(process_number, seq)
    except NotAllowed as error:
        return error.code, window


@settings(max_examples=500)
@given(st.lists(st.tuples(st.integers(0, 20).map(lambda n: max(1, n - 17)), STEPS), max_size=150))
def test_it_does_what_a_set_does(requests: list[tuple[int, int]]) -> None:
    window, model, seq = ReplayWindow(), Model(), 100
    for process_number, step in requests:
        seq = max(1, seq + step)
        said, window = verdict(window, process_number, seq)
        assert said == model.verdict(process_number, seq)


@given(st.permutations(range(1, WIDTH + 1)))
def test_any_order_within_the_width_comes_through_once(order: list[int]) -> None:
    window = ReplayWindow()
    for seq in order:
        window = window.after(1, seq)
    assert window == ReplayWindow(1, WIDTH, 2**WIDTH - 1)
    assert {verdict(window, 1, seq)[0] for seq in order} == {"trust.replayed"}


def test_the_edges() -> None:
    window = ReplayWindow().after(1, 1).after(1, WIDTH + 1)
    assert verdict(window, 1, 1)[0] == "trust.replayed"  # too late: the window no longer remembers it
    assert verdict(window, 1, 2)[0] == "taken"
    assert verdict(ReplayWindow().after(1, 1).after(1, WIDTH), 1, 1)[0] == "trust.replayed"  # and here it is remembered
    assert window.after(1, 2**63 - 1) == ReplayWindow(1, 2**63 - 1, 1)
    assert window.after(2, 1) == ReplayWindow(2, 1, 1)


@pytest.mark.parametrize("seq", [1, WIDTH, 2**63 - 1])
def test_a_later_process_closes_the_ones_before(seq: int) -> None:
    window = ReplayWindow().after(3, 9).after(4, 1)
    assert verdict(window, 3, seq)[0] == "trust.process-old"
    assert "4" in refused_by(window, 3, seq)


def refused_by(window: ReplayWindow, process_number: int, seq: int) -> str:
    with pytest.raises(NotAllowed) as caught:
        window.after(process_number, seq)
    assert caught.value.hint
    return caught.value.message
