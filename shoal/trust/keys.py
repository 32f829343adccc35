"""An Ed25519 key per node, made once and kept in a file for its owner's eyes alone.

    public key   ed25519:<64 hexadecimal digits>
    peer id      the first 20 letters of base32(SHA-256 of the 32 bytes), lower case: 100 bits
    signature    128 hexadecimal digits

Hexadecimal, because it has one spelling; base64 lets bits of the last letter vary.

The package cryptography comes with the extras coordinator and peer; it is imported when a key is first used.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import time
from base64 import b32encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.trust.codes import refusal

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PUBLIC = r"ed25519:[0-9a-f]{64}"
PEER_ID = r"[a-z2-7]{20}"
SIGNATURE = r"[0-9a-f]{128}"
PROCESS_NUMBER_MAX = 2**63 - 1
FILE_BYTES_MAX = 4096
OTHERS = 0o077


class SigningKey:
    """A private key and what follows from it."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public_key = "ed25519:" + private.public_key().public_bytes_raw().hex()
        self.peer_id = peer_id_of(self.public_key)

    @classmethod
    def make(cls) -> SigningKey:
        """Generate a key from the operating system's randomness."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    def sign(self, message: bytes) -> str:
        """Return the signature of a message."""
        return self._private.sign(message).hex()

    def pem(self) -> bytes:
        """Return the private key as PEM (PKCS #8)."""
        from cryptography.hazmat.primitives import serialization

        form = serialization.PrivateFormat.PKCS8
        return self._private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())

    def __repr__(self) -> str:
        return f"Key({self.public_key!r})"


def peer_id_of(public_key: str) -> str:
    """Return the peer id of a public key."""
    return b32encode(hashlib.sha256(_raw(public_key)).digest()).decode().lower()[:20]


def verifies(public_key: str, signature: str, message: bytes) -> bool:
    """Return whether the text is this key's signature of the message."""
    from cryptography.exceptions import InvalidSignature

    if not re.fullmatch(SIGNATURE, signature):
        return False
    try:
        _loaded(public_key).verify(bytes.fromhex(signature), message)
    except InvalidSignature:
        return False
    return True


def _raw(public_key: str) -> bytes:
    assert re.fullmatch(PUBLIC, public_key), public_key
    return bytes.fromhex(public_key.removeprefix("ed25519:"))


@lru_cache(maxsize=4096)
def _loaded(public_key: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(_raw(public_key))


# Files. One process at a time works in a node's folder (its lock is the caller's business).


def load_or_create(path: Path) -> SigningKey:
    """Load the node's key, or create and store it durably.

    Raises `StorageFailed`: `key.unreadable`, `key.mode` (others may read it), `key.damaged`.
    """
    with _storing(path):
        data = _read(path)
        if data is None:
            key = SigningKey.make()
            _write(path, key.pem())
            return key
    return _parsed(path, data)


def load_key(path: Path) -> SigningKey:
    """Load an existing key. Raises `StorageFailed`: `key.unreadable`, and as `load_or_make` does."""
    with _storing(path):
        data = _read(path)
    if data is None:
        raise refusal("key.unreadable", f"there is no key at {path}")
    return _parsed(path, data)


def _parsed(path: Path, data: bytes) -> SigningKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        private = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it is encrypted
        raise refusal("key.damaged", f"{path}: no private key: {str(error)[:100]}") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise refusal("key.damaged", f"{path}: a private key, but not of Ed25519")
    return SigningKey(private)


def next_process_number(path: Path, wall_s: Callable[[], float] = time.time) -> int:
    """Return the number of a start of this node, greater than those of all earlier starts; store it before returning.

    It is the time in milliseconds since 1970, or one more than the stored number where that is greater. So it does not
    go backwards when the file is lost and only the key is restored, nor when the clock is set back and the file stays.
    No peer compares it with a clock. Raises `StorageFailed`: `key.unreadable`, `key.mode`, `key.damaged`.
    """
    with _storing(path):
        data = _read(path)
        if data is not None and not re.fullmatch(rb"[1-9][0-9]{0,17}\n?", data):
            raise refusal("key.damaged", f"{path}: {data[:20]!r} is not a process number")
        process_number = max(int(data or b"0") + 1, int(1000 * wall_s()))
        _write(path, b"%d\n" % process_number)
    return process_number


@contextmanager
def _storing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refusal("key.unreadable", f"{path}: {error.strerror or error}") from error


def _read(path: Path) -> bytes | None:
    """Return the bytes of a small private file; None if it does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would make us wait
    except FileNotFoundError:
        return None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise refusal("key.damaged", f"{path} is not a file")
        if about.st_mode & OTHERS:
            raise refusal("key.mode", f"{path} has mode {stat.S_IMODE(about.st_mode):04o}; it must be 0600")
        data = os.read(descriptor, FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(data) > FILE_BYTES_MAX:
        raise refusal("key.damaged", f"{path} has more than {FILE_BYTES_MAX} bytes")
    return data


def _write(path: Path, data: bytes) -> None:
    """Replace a small file: after a crash at any instant it is whole, the old one or the new one."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)  # or the new name may not outlive a loss of power
    finally:
        os.close(folder)
