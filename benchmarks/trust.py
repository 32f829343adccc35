"""Cost of trust at a peer: signing and verifying documents, requests and answers.

python benchmarks/trust.py --peers 128 --times 2000

One thread, no HTTP, no files. Beside it, in the same run: Ed25519 alone, and SHA-256 of one million bytes, which
every
blob passes anyway.

Printed: processor microseconds of one call, the median over batches.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import time
from collections.abc import Callable
from itertools import count

from harness import MB, arguments, show

from shoal.trust.documents import Charter, JoinCert, Roster, RosterEntry, sign_document, verify_document
from shoal.trust.envelope import SignedRequest, Signer, check_answer, read_request, sha256
from shoal.trust.keys import SigningKey, verifies
from shoal.trust.request_verifier import RequestVerifier

BATCHES = 20
SHA = "0" * 64
NOW, LATER = 0, 1
PATH, QUERY = "/p2p/x/node-1.3.17", "slot=4"


class Job:
    """A job of some peers, with a sender and a receiver."""

    def __init__(self, peers: int) -> None:
        self.coordinator, keys = SigningKey.make(), [SigningKey.make() for _ in range(peers)]
        self.charter = Charter("digits", SHA, SHA, self.coordinator.public_key, SigningKey.make().public_key)
        rows = (
            RosterEntry(
                f"node-{n:04d}", key.peer_id, key.public_key, (f"https://node-{n:04d}.example:8443/",), True, 500
            )
            for n, key in enumerate(keys)
        )
        self.roster = sign_document(Roster("digits", 1, tuple(rows)), self.coordinator, self.charter)
        self.cert = JoinCert("digits", "new", keys[0].peer_id, keys[0].public_key, 500, LATER)
        self.sealed_cert = sign_document(self.cert, self.coordinator, self.charter)
        self.sender, self.receiver = (Signer(keys[n], self.charter, 1) for n in (0, 1))
        self.gate = RequestVerifier(self.charter, keys[1].peer_id)
        self.gate.update_roster(self.roster)
        self.digest = sha256(b"")

    def ask(self) -> SignedRequest:
        return self.sender.request(self.receiver.key.peer_id, "PUT", PATH, QUERY, self.digest)

    def come(self, request: SignedRequest) -> None:
        """Handle it completely, from its headers on."""
        arrived = read_request("PUT", PATH, QUERY, request.headers().items())
        self.gate.admit(self.gate.examine(arrived, NOW), self.digest, NOW)


def ways(job: Job, calls: int) -> dict[str, Callable[[], object]]:
    """Return the measured functions: each call does it once."""
    key, text, asked = job.sender.key, b"x" * 400, job.ask()
    signature, answer, body = key.sign(text), job.receiver.answer(asked, 200, SHA), bytes(MB)
    requests, turn = [job.ask() for _ in range(calls)], count()
    return {
        "Ed25519: sign": lambda: key.sign(text),
        "Ed25519: verify": lambda: verifies(key.public_key, signature, text),
        "request: sign": job.ask,
        "request: read, verify, admit": lambda: job.come(requests[next(turn)]),
        "answer: sign": lambda: job.receiver.answer(asked, 200, SHA),
        "answer: verify": lambda: check_answer(answer, asked, job.receiver.key.public_key, job.charter),
        "join certificate: seal": lambda: sign_document(job.cert, job.coordinator, job.charter),
        "join certificate: unseal": lambda: verify_document(job.sealed_cert, JoinCert, job.charter),
        "roster: unseal": lambda: verify_document(job.roster, Roster, job.charter),
        "SHA-256 of 1 MB": lambda: hashlib.sha256(body).digest(),
    }


def microseconds(work: Callable[[], object], times: int) -> float:
    """Return the processor time of one call: the median over batches, after one that is not counted."""
    found = []
    for _ in range(BATCHES + 1):
        began = time.process_time()
        for _ in range(times):
            work()
        found.append((time.process_time() - began) / times * 1e6)
    return statistics.median(found[1:])


def main() -> int:
    """Measure, and print."""
    parser = arguments(__doc__)
    parser.add_argument("--peers", type=int, default=128, help="in the roster, at least 2")
    parser.add_argument("--times", type=int, default=2000, help="calls of each kind, in all")
    options = parser.parse_args()
    job = Job(options.peers)
    times = max(1, options.times // BATCHES)
    measured = ways(job, times * (BATCHES + 1))
    rows = [{"what": name, "cpu_us": microseconds(work, times)} for name, work in measured.items()]
    show(f"trust, a roster of {options.peers} peers ({len(job.roster)} bytes)", rows, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
