"""Private set intersection: two parties find the ids that both have, and exchange masked ids only.

PrivateIntersection   each party multiplies hashed ids by a secret of its own (ECDH-PSI)
SaltedIntersection    both parties hash ids under one secret; for parties that trust each other

Meadows: "A more efficient cryptographic matchmaking protocol", IEEE Symposium on Security and Privacy 1986; Huberman,
Franklin, Hogg: "Enhancing privacy and trust in electronic communities", EC 1999. The group is P-256, whose order is
prime: a multiple of a point tells nothing about it. Points travel as x-coordinates: a point and its negative have the
same one, and so have their multiples.

Both parties get the rows in the same order, so row i of one is row i of the other. The order is that of the masked ids,
which is that of no id. The package cryptography comes with the extras coordinator and peer; it is imported when it is
first used.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256

from shoal.core.errors import InvalidJob, Refused

IDS_MAX = 4_000_000
"""Ids that a party may send."""
POINT, HASH = 32, 16
"""Bytes of a masked id in a message, by point and by hash."""
SECRET_BYTES_MIN = 16


class PrivateIntersection:
    """One party's side, for one intersection. Its secret never leaves it.

    Both send `masked()`, then the `answer` to what they received; `rows` of the other's answer is the result. `ids`:
    one for each row of the party's data, as text or bytes. Raises `InvalidJob` (`psi.ids`) for an id that is empty or
    repeated.
    """

    def __init__(self, ids: Sequence[str | bytes]) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self._curve, self._ecdh = ec.SECP256R1(), ec.ECDH()
        self._load = ec.EllipticCurvePublicKey.from_encoded_point
        self._secret = ec.generate_private_key(self._curve)
        self._mine = [self._hashed(one) for one in check_ids(ids)]
        self._order = sorted(range(len(ids)), key=self._mine.__getitem__)
        self._theirs: frozenset[bytes] | None = None

    def _times_secret(self, x: bytes) -> bytes:
        """Return the x-coordinate of a multiple. Raises `ValueError` if no point has this one."""
        return self._secret.exchange(self._ecdh, self._load(self._curve, b"\x02" + x))

    def _hashed(self, one: bytes) -> bytes:
        """Return an id masked once: the first of its hashes that is the x-coordinate of a point; every other one is."""
        attempt = 0
        while True:
            try:
                return self._times_secret(sha256(b"shoal-psi-1\n%d\n" % attempt + one).digest())
            except ValueError:
                attempt += 1

    def masked(self) -> bytes:
        """Return this party's ids, masked once: `POINT` bytes each, sorted."""
        return b"".join(self._mine[row] for row in self._order)

    def answer(self, received: bytes) -> bytes:
        """Return the other party's ids, masked by both, in the order received. Works once, so as not to answer guesses.

        Raises `Refused` (`psi.message`) for bytes that are not masked ids.
        """
        if self._theirs is not None:
            raise _refused("the other party's ids have been answered")
        twice = list[bytes]()
        for place, x in enumerate(_cells(received, POINT)):
            try:
                twice.append(self._times_secret(x))
            except ValueError:
                raise _refused(f"masked id {place} is not a point of P-256") from None
        self._theirs = frozenset(twice)
        return b"".join(twice)

    def rows(self, answered: bytes) -> list[int]:
        """Return the rows of this party's ids that the other has, too. `answered`: the other's answer.

        Raises `Refused` (`psi.message`) for bytes that do not answer these ids.
        """
        mine = _cells(answered, POINT)
        if self._theirs is None:
            raise _refused("an answer before the other party's ids")
        if len(mine) != len(self._order):
            raise _refused(f"an answer of {len(mine)} ids to {len(self._order)}")
        return [row for value, row in sorted(zip(mine, self._order, strict=True)) if value in self._theirs]


class SaltedIntersection:
    """One party's side for parties that trust each other; both send `masked()`. `secret`: the same bytes at both.

    Raises `InvalidJob` for an id that is empty or repeated (`psi.ids`), and for a short secret (`psi.secret`).
    """

    def __init__(self, ids: Sequence[str | bytes], secret: bytes) -> None:
        if len(secret) < SECRET_BYTES_MIN:
            text, hint = (
                f"a secret of {len(secret)} bytes; at least {SECRET_BYTES_MIN}",
                "draw one by secrets.token_bytes(32)",
            )
            raise InvalidJob(text, code="psi.secret", hint=hint)
        hashes = (hmac.digest(secret, one, sha256)[:HASH] for one in check_ids(ids))
        self._rows = {value: row for row, value in enumerate(hashes)}

    def masked(self) -> bytes:
        """Return this party's ids: `HASH` bytes each, sorted."""
        return b"".join(sorted(self._rows))

    def rows(self, received: bytes) -> list[int]:
        """Return the rows of the ids that the other has, too. Raises `Refused` (`psi.message`) for another form."""
        return [self._rows[value] for value in sorted(_cells(received, HASH)) if value in self._rows]


def check_ids(ids: Sequence[str | bytes]) -> list[bytes]:
    """Return ids as bytes, text as UTF-8. Raises `InvalidJob` for one that is empty or repeated, by name."""
    if len(ids) > IDS_MAX:
        raise _invalid(f"{len(ids)} ids; at most {IDS_MAX}")
    found = dict[bytes, int]()
    given: Sequence[object] = ids
    for row, one in enumerate(given):
        data = one.encode() if isinstance(one, str) else one
        if not isinstance(data, bytes) or not data:
            raise _invalid(f"the id of row {row} is {one!r}")
        if (first := found.setdefault(data, row)) != row:
            raise _invalid(f"the rows {first} and {row} have the same id, {one!r}")
    return list(found)


def _cells(message: bytes, width: int) -> list[bytes]:
    """Return the values of a message. Raises `Refused` for another length, and for values that repeat."""
    if len(message) % width or len(message) > IDS_MAX * width:
        text = f"a message of {len(message)} bytes; {width} for each of at most {IDS_MAX} ids"
        raise _refused(text)
    found = [message[start : start + width] for start in range(0, len(message), width)]
    if len(set(found)) != len(found):
        raise _refused("a masked id is repeated")
    return found


def _invalid(text: str) -> InvalidJob:
    return InvalidJob(text, code="psi.ids", hint="give each row an id of its own, as text or bytes")


def _refused(text: str) -> Refused:
    return Refused(text, code="psi.message", hint="run the intersection again, with the same release on both sides")
