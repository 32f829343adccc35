"""Card of private set intersection of two parties with 100,000 ids each, 60,000 of them in common.

    python benchmarks/shelf.py psi

Each party is a process of its own on this machine, and they send each other their messages over a pipe; where parties
have machines of their own, each has the processor time of the second line. The salted variant runs in one process.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from random import Random
from threading import Thread
from time import perf_counter, process_time

from card_figure import Figure

from shoal.trust.intersection import POINT, PrivateIntersection, SaltedIntersection

IDS, COMMON, TARGET_S = 100_000, 60_000, 30.0


def party(ids: list[str], other: Connection, out: Connection) -> None:
    """Do one party's side; send its rows and its processor seconds to `out`."""
    began = process_time()
    mine = PrivateIntersection(ids)
    answer = mine.answer(exchanged(other, mine.masked()))
    rows = mine.rows(exchanged(other, answer))
    out.send((rows, process_time() - began))


def exchanged(other: Connection, message: bytes) -> bytes:
    """Send a message and return the other party's; both may be larger than the pipe."""
    sending = Thread(target=other.send_bytes, args=(message,))
    sending.start()
    received = other.recv_bytes()
    sending.join()
    return received


def privately(parties: list[list[str]]) -> tuple[list[list[int]], list[float], float]:
    """Return both parties' rows and processor seconds, and the seconds in all."""
    context = multiprocessing.get_context("fork")
    ends, outs = context.Pipe(), [context.Pipe(duplex=False) for _ in parties]
    began = perf_counter()
    processes = [
        context.Process(target=party, args=(ids, end, out))
        for ids, end, (_, out) in zip(parties, ends, outs, strict=True)
    ]
    for process in processes:
        process.start()
    found = [out.recv() for out, _ in outs]
    seconds = perf_counter() - began
    for process in processes:
        process.join()
    return [rows for rows, _ in found], [used for _, used in found], seconds


def wrong(parties: list[list[str]], rows: list[list[int]]) -> int:
    """Return how many people differ from those that a set has, or are in another row at the other party."""
    mine, theirs = ([ids[row] for row in found] for ids, found in zip(parties, rows, strict=True))
    differ = sum(a != b for a, b in zip(mine, theirs, strict=False)) + abs(len(mine) - len(theirs))
    return differ + len(set(mine) ^ (set(parties[0]) & set(parties[1])))


def figures(_: str, seed: int) -> Iterator[Figure]:
    """Yield the figures of the card."""
    rng = Random(seed)
    people = [f"person-{n}" for n in rng.sample(range(10**9), 2 * IDS - COMMON)]
    parties = [people[:IDS], people[IDS - COMMON :]]
    rng.shuffle(parties[1])
    rows, used, seconds = privately(parties)
    errors = wrong(parties, rows)
    yield Figure("people missed, added or in another row", "0", str(errors), not errors)
    yield Figure("seconds, two processes", f"< {TARGET_S:g}", f"{seconds:.1f}", seconds < TARGET_S)
    yield Figure("processor seconds of each party", "", " and ".join(f"{one:.1f}" for one in used))
    yield Figure("bytes that each party sends", "", f"{2 * IDS * POINT:,}")
    began = perf_counter()
    first, second = (SaltedIntersection(ids, b"a secret of both") for ids in parties)
    hashed = [first.rows(second.masked()), second.rows(first.masked())]
    seconds, errors = perf_counter() - began, wrong(parties, hashed)
    yield Figure("salted hashes: people missed, added or in another row", "0", str(errors), not errors)
    yield Figure("salted hashes: seconds, both parties in one process", "", f"{seconds:.1f}")
