"""A key is made once, kept for its owner alone, and an invalid file gives a hint."""

from __future__ import annotations

import os
import stat
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from shoal.core.errors import StorageFailed
from shoal.trust.keys import FILE_BYTES_MAX, SigningKey, load_or_create, next_process_number, peer_id_of, verifies
from tests.trust.job import key
from tests.wire.mutations import spoilt_bytes

PKCS8 = serialization.PrivateFormat.PKCS8
PEM = serialization.Encoding.PEM


def written(path: Path, data: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


def refused(path: Path, code: str, process_number: bool = False) -> str:
    with pytest.raises(StorageFailed) as caught:
        (next_process_number if process_number else load_or_create)(path)
    assert caught.value.code == code
    assert caught.value.hint
    assert str(path) in caught.value.message
    return caught.value.message


def test_a_key_is_made_once(tmp_path: Path) -> None:
    old = os.umask(0o002)
    try:
        made = load_or_create(tmp_path / "key")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert load_or_create(tmp_path / "key").public_key == made.public_key
    assert load_or_create(tmp_path / "other").public_key != made.public_key
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "other"]


def test_the_texts_are_what_they_always_were() -> None:
    """RFC 8032, 7.1, test 2; the peer id by hand: `printf PUB | xxd -r -p | sha256sum | xxd -r -p | base32`."""
    seed = "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"
    mine = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed)))
    assert mine.public_key == "ed25519:3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    assert mine.sign(b"\x72") == (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert mine.peer_id == peer_id_of(mine.public_key) == "hh3rhufgiqst6bcssqq3"
    assert "4ccd" not in repr(mine)


def test_only_the_owner_signs() -> None:
    signature = key("a").sign(b"text")
    assert verifies(key("a").public_key, signature, b"text")
    assert not verifies(key("b").public_key, signature, b"text")
    assert not verifies(key("a").public_key, signature, b"texts")


def test_a_signature_has_one_spelling() -> None:
    text = key("a").sign(b"text")
    others = [text.upper(), text[:-2], text[:-1], text + "00", text + "\n", text[:-1] + "\u0660", ""]
    assert [verifies(key("a").public_key, one, b"text") for one in [text, *others]] == [True] + [False] * len(others)


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    made = load_or_create(tmp_path / "key")
    (tmp_path / "key").chmod(0o640)
    assert "0640" in refused(tmp_path / "key", "key.mode")
    (tmp_path / "key").chmod(0o600)
    assert load_or_create(tmp_path / "key").public_key == made.public_key  # the refusal has changed nothing
    (tmp_path / "key").chmod(0o400)
    assert load_or_create(tmp_path / "key").public_key == made.public_key


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no key",
        key("a").pem()[:-40],
        X25519PrivateKey.generate().private_bytes(PEM, PKCS8, serialization.NoEncryption()),
        Ed25519PrivateKey.generate().private_bytes(PEM, PKCS8, serialization.BestAvailableEncryption(b"secret")),
        key("a").pem().ljust(FILE_BYTES_MAX + 1, b"\n"),
    ],
    ids=["empty", "text", "cut", "of another kind", "encrypted", "long"],
)
def test_a_damaged_key_is_refused_and_kept(tmp_path: Path, data: bytes) -> None:
    path = written(tmp_path / "key", data)
    refused(path, "key.damaged")
    assert path.read_bytes() == data


def test_what_is_no_file_is_no_key(tmp_path: Path) -> None:
    refused(tmp_path, "key.damaged")
    os.mkfifo(tmp_path / "pipe", 0o600)
    refused(tmp_path / "pipe", "key.damaged")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    refused(tmp_path / "none" / "key", "key.unreadable")
    refused(tmp_path / "none" / "process-number", "key.unreadable", process_number=True)
    refused(written(tmp_path / "file", b"") / "key", "key.unreadable")


def test_a_spoilt_key_file_never_makes_another_error(tmp_path: Path) -> None:
    random, path = Random(1), tmp_path / "key"
    path.touch(0o600)
    came = Counter[str]()
    for _ in range(1000):
        path.write_bytes(spoilt_bytes(key("a").pem(), [key("b").pem()], random))
        try:
            load_or_create(path)
            came["taken"] += 1
        except StorageFailed as error:
            came[error.code if len(error.message) < 1000 else error.message] += 1
    assert came.keys() == {"taken", "key.damaged"}
    assert came["taken"] < 500  # other letters may be another key's


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = next_process_number(tmp_path / "process-number")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert "No space" in refused(tmp_path / "process-number", "key.unreadable", process_number=True)
    assert [path.name for path in tmp_path.iterdir()] == ["process-number"]
    assert next_process_number(tmp_path / "process-number") > first


def test_process_numbers_only_rise(tmp_path: Path) -> None:
    assert [next_process_number(tmp_path / "process-number", lambda: 0.0) for _ in range(12)] == list(range(1, 13))
    written(tmp_path / "process-number", b"17")  # as an operator would write it
    assert next_process_number(tmp_path / "process-number", lambda: 0.0) == 18


@pytest.mark.parametrize("data", [b"", b"0", b"-1", b"07", b"1.5", b"1\n2", b"9" * 19, "١".encode(), b"1\n\n"])
def test_a_damaged_process_number_is_refused_and_kept(tmp_path: Path, data: bytes) -> None:
    path = written(tmp_path / "process-number", data)
    refused(path, "key.damaged", process_number=True)
    assert path.read_bytes() == data
