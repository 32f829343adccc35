"""Networks over devices, edge and cloud with an exit at each level: modules, joint training, and answers.

They need the extra `torch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.extras import lazy

if TYPE_CHECKING:
    from shoal.core.exits.byte_costs import bytes_per_answer
    from shoal.core.exits.threshold_choice import choose_by_accuracy, choose_by_fraction
    from shoal.learn.exits.exit_network import ExitLevel, ExitNetwork
    from shoal.learn.exits.joint_training import exit_learner
    from shoal.learn.exits.level_answers import answer, hops_of, record_exits

__all__ = [
    "ExitLevel",
    "ExitNetwork",
    "answer",
    "bytes_per_answer",
    "choose_by_accuracy",
    "choose_by_fraction",
    "exit_learner",
    "hops_of",
    "record_exits",
]

_HOME = {
    "ExitLevel": "shoal.learn.exits.exit_network",
    "ExitNetwork": "shoal.learn.exits.exit_network",
    "answer": "shoal.learn.exits.level_answers",
    "bytes_per_answer": "shoal.core.exits.byte_costs",
    "choose_by_accuracy": "shoal.core.exits.threshold_choice",
    "choose_by_fraction": "shoal.core.exits.threshold_choice",
    "exit_learner": "shoal.learn.exits.joint_training",
    "hops_of": "shoal.learn.exits.level_answers",
    "record_exits": "shoal.learn.exits.level_answers",
}


def __getattr__(name: str) -> Any:
    return lazy(_HOME, __name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
