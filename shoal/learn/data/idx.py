"""The IDX format of MNIST and its relatives, plain or gzipped.

0x00 0x00 | type (0x08: unsigned byte) | number of dimensions | each dimension, 4 bytes big-endian | the bytes
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shoal.core.errors import InvalidPayload

DIMENSIONS_MAX = 4
CHUNK_BYTES = 1 << 20


def array_of(raw: bytes, name: str) -> npt.NDArray[np.uint8]:
    """Return the array of an IDX file, `uint8[d1, d2, …]`. Raises `InvalidPayload` with the reason."""
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise _broken(name, "does not start as an IDX file of bytes does")
    dimensions = raw[3]
    start = 4 + 4 * dimensions
    if not 1 <= dimensions <= DIMENSIONS_MAX or len(raw) < start:
        raise _broken(name, f"claims {dimensions} dimensions in {len(raw)} bytes")
    shape = tuple(int.from_bytes(raw[at : at + 4], "big") for at in range(4, start, 4))
    if math.prod(shape) != len(raw) - start:
        raise _broken(name, f"claims the shape {list(shape)} and holds {len(raw) - start} bytes")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def unpacked(chunks: Iterable[bytes], name: str, bytes_max: int) -> bytes:
    """Return the content of a file given in pieces, decompressed if it is gzipped.

    Raises `InvalidPayload` as soon as it is longer than `bytes_max`, and for a damaged or truncated gzip file.
    """
    out = bytearray()
    for piece in _gunzipped(iter(chunks), name, bytes_max):
        out += piece
        if len(out) > bytes_max:
            raise _broken(name, f"is longer than the {bytes_max} bytes that it should have")
    return bytes(out)


def _gunzipped(chunks: Iterator[bytes], name: str, bytes_max: int) -> Iterator[bytes]:
    head = b""
    while len(head) < 2 and (chunk := next(chunks, b"")):
        head += chunk
    if not head.startswith(b"\x1f\x8b"):
        yield head
        yield from chunks
        return
    gzip = zlib.decompressobj(wbits=31)
    try:
        while head:
            yield gzip.decompress(head, bytes_max + 1)  # bounded: a small file can unpack into gigabytes
            head = b"" if gzip.eof else next(chunks, b"")
    except zlib.error as error:
        raise _broken(name, f"is a damaged gzip file ({error})") from error
    if not gzip.eof:
        raise _broken(name, "is a gzip file that ends too early")


def file_chunks(path: Path, progress: Callable[[int], None] = lambda _: None) -> Iterator[bytes]:
    """Yield a file in pieces, and pass the bytes of each to `progress`."""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            progress(len(chunk))
            yield chunk


def _broken(name: str, what: str) -> InvalidPayload:
    return InvalidPayload(f"{name} {what}", code="data.broken", hint="download the file again")
