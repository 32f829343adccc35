"""The order of calls on a virtual clock."""

from shoal.sim.network.clock import VirtualClock


def test_calls_of_one_moment_run_in_the_order_of_planning() -> None:
    clock, made = VirtualClock(), list[str]()

    def first() -> None:
        made.append("first")
        clock.after(0.0, made.append, "now")
        clock.at(0.5, made.append, "past")

    clock.at(2.0, made.append, "later")
    clock.at(1.0, first)
    clock.after(1.0, made.append, "second")
    clock.run(1.5)
    assert (made, clock.now) == (["first", "second", "now", "past"], 1.5)
    assert clock.step()
    assert (made[-1], clock.now) == ("later", 2.0)
    assert not clock.step()
