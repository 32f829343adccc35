"""Sentences about hotels, made up: two opinions of two things."""

from itertools import chain
from random import Random

TOPICS = [
    ["bed", "room", "bathroom", "pillow", "shower"],
    ["breakfast", "dinner", "coffee", "soup", "bread"],
    ["staff", "porter", "waiter", "receptionist", "cleaner"],
]
OPINIONS = [
    ["dirty", "awful", "cold", "rude", "stale", "broken"],
    ["clean", "lovely", "warm", "polite", "fresh", "perfect"],
]
WORDS = sorted({"the", "was", "and", "but", *chain(*TOPICS, *OPINIONS)})


def sentence(random: Random) -> tuple[str, int, int]:
    """Return a sentence, the opinion of its first clause, and that of its last one: 0 or 1."""
    things, first, last = random.choice(TOPICS), random.randrange(2), random.randrange(2)
    middle = "and" if first == last else "but"
    return f"{clause(random, things, first)} {middle} {clause(random, things, last)}", first, last


def clause(random: Random, things: list[str], opinion: int) -> str:
    return f"the {random.choice(things)} was {random.choice(OPINIONS[opinion])}"


def reviews(count: int, seed: int) -> list[tuple[str, int, int]]:
    random = Random(seed)
    return [sentence(random) for _ in range(count)]
