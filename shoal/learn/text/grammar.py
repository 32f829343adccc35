"""A text that a grammar makes: sentences with agreement, nested clauses, speech, names and sums, the same on all nodes.

It needs no download, and a model can learn it for long: the verb agrees with a subject that may stand far before it,
a pronoun with a name, and the result of a sum with its two numbers.
"""

from __future__ import annotations

import re
from functools import lru_cache
from random import Random

WORDS = """
woman: Ada, Clara, Edith, Grace, Hedy, Ida, Lise, Maria, Nora, Olga, Rosa, Sofia, Vera, Wanda, Yuki, Zora
man: Adam, Boris, Carlo, David, Emil, Frank, Georg, Hans, Igor, Jonas, Karim, Lukas, Milan, Oscar, Pavel, Tomas
noun: apple, baker, bridge, captain, carpenter, cat, clerk, doctor, dog, driver, engine, farmer, fisher, garden
noun: horse, judge, king, lamp, letter, miller, mountain, nurse, owl, painter, pilot, poet, priest, queen, river
noun: sailor, singer, soldier, stone, teacher, thief, tower, traveller, tree, villager, weaver, window, writer
adjective: angry, brave, bright, broken, careful, clever, cold, curious, dark, early, famous, gentle, golden, green
adjective: grey, happy, heavy, honest, hungry, large, lonely, modern, narrow, old, patient, quiet, red, rich, silent
action: admire, answer, avoid, follow, forget, greet, help, know, like, meet, need, notice, paint, remember, see, visit
state: dance, dream, hide, laugh, listen, rest, run, sing, sleep, swim, travel, wait, walk, work
place: in the forest, by the sea, on the hill, near the old mill, under the bridge, behind the church, at the market
time: every morning, at night, in winter, after the rain, before noon, on Sundays, all summer
speech: says, thinks, claims, believes, fears, hopes
one: the, one, every, this
many: the, some, many, two, three
"""


def _words(kind: str) -> list[str]:
    """Return the words of a kind."""
    lines = [line.partition(": ") for line in WORDS.splitlines()]
    return [word for name, _, words in lines if name == kind for word in words.split(", ")]


NAMES = {"she": _words("woman"), "he": _words("man")}
ARTICLES = {False: _words("one"), True: _words("many")}
NOUNS, ADJECTIVES, ACTIONS, STATES = (_words(kind) for kind in ("noun", "adjective", "action", "state"))
PLACES, TIMES, SPEECH = (_words(kind) for kind in ("place", "time", "speech"))


class Grammar:
    """A source of random sentences."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def noun_phrase(self, depth: int) -> tuple[str, bool]:
        """Return a noun phrase of at most `depth` nested clauses, and whether it is plural."""
        plural = self._chance(0.4)
        article = self._rng.choice(ARTICLES[plural])
        adjective = f"{self._rng.choice(ADJECTIVES)} " if self._chance(0.5) else ""
        phrase = f"{article} {adjective}{self._rng.choice(NOUNS)}{'s' if plural else ''}"
        if depth and self._chance(0.35):
            inner = f"that {self.verb_phrase(depth - 1, plural=plural)}"
            if self._chance(0.5):
                subject, many = self.noun_phrase(depth - 1)
                inner = f"that {subject} {self._verb(ACTIONS, plural=many)}"
            phrase += f", {inner},"
        return phrase, plural

    def _verb(self, verbs: list[str], *, plural: bool) -> str:
        verb = self._rng.choice(verbs)
        return verb if plural else f"{verb}{'es' if verb.endswith(('s', 'sh', 'ch')) else 's'}"

    def verb_phrase(self, depth: int, *, plural: bool) -> str:
        """Return a predicate that agrees with its subject."""
        if self._chance(0.4):
            return f"{self._verb(STATES, plural=plural)} {self._rng.choice(PLACES)}"
        return f"{self._verb(ACTIONS, plural=plural)} {self.noun_phrase(depth)[0]}"

    def sentence(self) -> str:
        """Return a sentence, with its full stop."""
        kind = self._rng.random()
        if kind < 0.2:
            a, b = self._rng.randrange(100), self._rng.randrange(100)
            return f"{a} plus {b} is {a + b}."
        subject, plural = self.noun_phrase(2)
        text = f"{subject} {self.verb_phrase(2, plural=plural)}"
        if kind < 0.5:
            pronoun = self._rng.choice(("she", "he"))
            name, reason = self._rng.choice(NAMES[pronoun]), self.verb_phrase(0, plural=False)
            text = f"{name} {self._rng.choice(SPEECH)} that {text}, and {pronoun} {reason}"
        elif kind < 0.7:
            text = f"{self._rng.choice(TIMES)} {text}"
        return re.sub(",+", ",", f"{text[0].upper()}{text[1:]}.").replace(",.", ".")


@lru_cache(maxsize=2)
def made_text(nbytes: int = 400_000, seed: int = 0) -> bytes:
    """Return `nbytes` of sentences, five to a paragraph."""
    grammar, parts, length = Grammar(seed), list[str](), 0
    while length < nbytes:
        parts.append(" ".join(grammar.sentence() for _ in range(5)) + "\n")
        length += len(parts[-1])
    return "".join(parts).encode()[:nbytes]
