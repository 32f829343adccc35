"""Language models over the bytes of a text: a small GPT, a ready learner, and a text that a grammar makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.extras import lazy

if TYPE_CHECKING:
    from shoal.learn.text.gpt import GPT
    from shoal.learn.text.text_learner import learner

__all__ = ["GPT", "learner"]

_HOME = {"GPT": "shoal.learn.text.gpt", "learner": "shoal.learn.text.text_learner"}


def __getattr__(name: str) -> Any:
    return lazy(_HOME, __name__, name)
