"""Blobs in an S3 store: `s3://BUCKET/PREFIX?endpoint=…`. obstore moves the bytes, botocore signs uploads.

Nodes use the store directly: downloads by a presigned URL, uploads by one that is bound to a size and a SHA-256. The
store is not trusted to check either, so uploads have names of their own until the coordinator has read and checked
them.

Each error names its remedy; requests are retried for a while before one is raised.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import obstore
from obstore import exceptions as faults
from obstore.store import S3Store as Remote

from shoal.core.errors import StorageFailed
from shoal.wire.payload import PIECE_BYTES, ByteSource
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.blobs.remote_blobs import RemoteStore
from shoal_coordinator.storage.blobs.store import BlobInfo, PresignedTarget, missing

PART_BYTES = 8 * 2**20
"""Part size of larger blobs; parts are uploaded concurrently."""
PARTS_AT_ONCE = 4

RETRY_S = 10
"""Seconds for which requests to a store that does not answer are retried."""

OPTIONS = ("endpoint", "public", "region", "presign")


@dataclass(frozen=True)
class S3Location:
    """Parsed address of a store. `public`: its address for nodes, if it differs."""

    bucket: str
    prefix: str
    endpoint: str
    public: str
    region: str
    presign: bool

    @staticmethod
    def of(url: str) -> S3Location:
        """Parse an address. Raises `StorageFailed` if it is invalid."""
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = sorted(given.keys() - set(OPTIONS))
        if not parts.hostname or unknown or given.get("presign", "yes") not in ("yes", "no"):
            fault = f"unknown: {', '.join(unknown)}" if unknown else "no bucket" if not parts.hostname else "presign"
            raise StorageFailed(
                f"blobs = {url!r}: {fault}",
                code="storage.address",
                hint="write s3://BUCKET/PREFIX?endpoint=https://HOST&public=https://HOST&region=NAME&presign=yes|no",
            )
        endpoint = given.get("endpoint", "")
        return S3Location(
            parts.netloc,
            parts.path.strip("/"),
            endpoint,
            given.get("public", "") or endpoint,
            given.get("region", "") or "us-east-1",
            given.get("presign", "yes") == "yes",
        )


class S3Store(RemoteStore):
    """Blobs below a prefix of a bucket."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.blob_cache_bytes_max)
        self._place = S3Location.of(settings.blobs)
        self.name = f"s3://{self._place.bucket}/{self._place.prefix}".rstrip("/")
        self.direct = self._place.presign
        self._key_id = settings.blobs_key_id
        self._secret = settings.blobs_secret.get_secret_value()
        self._remote, self._signing = self._connect(self._place.endpoint), self._connect(self._place.public)
        self._signer: Any = None
        self._lock = threading.Lock()

    def _connect(self, endpoint: str) -> Remote:
        more: Any = {"endpoint": endpoint} if endpoint else {}
        if self._key_id:
            more |= {"access_key_id": self._key_id, "secret_access_key": self._secret}
        with self._storage_errors():
            return Remote(
                self._place.bucket,
                prefix=self._place.prefix or None,
                region=self._place.region,
                virtual_hosted_style_request=False,
                client_options={
                    "allow_http": endpoint.startswith("http://"),
                    "connect_timeout": timedelta(seconds=5),
                    "read_timeout": timedelta(seconds=30),
                    "timeout": timedelta(hours=6),  # for a whole blob; the other two find stalled ones
                },
                retry_config={"max_retries": 4, "retry_timeout": timedelta(seconds=RETRY_S)},
                **more,
            )

    def put(self, key: str, source: ByteSource) -> bool:
        if self.size(key) is not None:
            return False
        with self._storage_errors():
            if len(source) > PART_BYTES:  # the name says what is in it: who comes second puts the same bytes
                obstore.put(
                    self._remote,
                    key,
                    (bytes(source[at : at + PIECE_BYTES]) for at in range(0, len(source), PIECE_BYTES)),
                    use_multipart=True,
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_AT_ONCE,
                )
                return True
            data = bytes(source[0 : len(source)])
            try:
                obstore.put(self._remote, key, data, mode="create", use_multipart=False)
            except faults.AlreadyExistsError:
                return False
            except faults.NotSupportedError:  # a store without conditions
                obstore.put(self._remote, key, data, use_multipart=False)
            return True

    def get(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        extent: Any = {"offset": start} if stop is None else (start, stop)
        whole = not start and stop is None
        with self._storage_errors(key):
            found = obstore.get(self._remote, key, options={} if whole else {"range": extent})
        yield from self._pieces(found, key)

    def _pieces(self, found: obstore.GetResult, key: str) -> Iterator[bytes]:
        with self._storage_errors(key):
            for chunk in found.stream(min_chunk_size=PIECE_BYTES):
                data = memoryview(chunk)
                for at in range(0, len(data), PIECE_BYTES):
                    yield bytes(data[at : at + PIECE_BYTES])

    def read(self, key: str) -> tuple[str, Iterator[bytes]]:
        with self._storage_errors(key):
            found = obstore.get(self._remote, key)
            return found.meta["e_tag"] or "", self._pieces(found, key)

    def copy(self, source: str, key: str, mark: str) -> bool:
        if not mark:
            return False
        with suppress(StorageFailed):  # the store cannot copy this one: it is put
            if self.size(key) is not None:
                return True
            with self._storage_errors(source):
                obstore.copy(self._remote, source, key)
                if obstore.head(self._remote, key)["e_tag"] == mark:
                    return True
        self.delete(key)  # its writer has put something else there since it was read
        return False

    def size(self, key: str) -> int | None:
        with self._storage_errors(key):
            try:
                return int(obstore.head(self._remote, key)["size"])
            except FileNotFoundError:
                return None

    def delete(self, key: str) -> None:
        with self._storage_errors():
            try:
                obstore.delete(self._remote, key)
            except FileNotFoundError:
                return

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        with self._storage_errors():
            for some in obstore.list(self._remote, prefix):
                for one in some:
                    yield BlobInfo(one["path"], one["size"], one["last_modified"].timestamp())

    # Where nodes are sent

    def presign_download(self, key: str, ttl_s: float) -> PresignedTarget | None:
        if not self.direct:
            return None
        with self._storage_errors(key):
            return PresignedTarget("GET", obstore.sign(self._signing, "GET", key, timedelta(seconds=ttl_s)))

    def presign_upload(self, key: str, nbytes: int, sha256: str, ttl_s: float) -> PresignedTarget | None:
        if not self.direct:
            return None
        checksum = base64.b64encode(bytes.fromhex(sha256)).decode("ascii")
        named = {"Bucket": self._place.bucket, "Key": f"{self._place.prefix}/{key}".lstrip("/")}
        url = self._uploads().generate_presigned_url(
            "put_object",
            Params={**named, "ContentLength": nbytes, "ChecksumSHA256": checksum},
            ExpiresIn=max(1, int(ttl_s)),
        )
        return PresignedTarget("PUT", url, {"Content-Length": str(nbytes), "x-amz-checksum-sha256": checksum})

    def _uploads(self) -> Any:
        """Create botocore's client, which can bind a presigned URL to headers; slow."""
        with self._lock:
            if self._signer is None:
                from botocore.config import Config
                from botocore.session import get_session

                config = Config(
                    signature_version="s3v4",
                    s3={"addressing_style": "path"},
                    request_checksum_calculation="when_required",
                )
                self._signer = get_session().create_client(
                    "s3",
                    region_name=self._place.region,
                    endpoint_url=self._place.public or None,
                    aws_access_key_id=self._key_id or None,
                    aws_secret_access_key=self._secret or None,
                    config=config,
                )
            return self._signer

    @contextmanager
    def _storage_errors(self, key: str = "") -> Iterator[None]:
        """Convert obstore's errors to `StorageFailed` with hints."""
        try:
            yield
        except (faults.BaseError, FileNotFoundError, PermissionError, OSError, ValueError) as error:
            raise self._fault(error, key) from error

    def _fault(self, error: Exception, key: str) -> StorageFailed:
        text = str(error)
        if isinstance(error, FileNotFoundError | faults.NotFoundError) or "NoSuchBucket" in text:
            if key and "NoSuchBucket" not in text:
                return missing(key, self.name)
            return StorageFailed(
                f"there is no bucket {self._place.bucket}",
                code="storage.no-bucket",
                hint="make it, or correct the address in blobs",
            )
        if any(words in text for words in FULL):
            hint = "raise its quota or free some space in it; nodes send again by themselves"
            return StorageFailed(f"{self.name} is full", code="storage.full", hint=hint)
        if isinstance(error, DENIED) or any(words in text for words in ("403 Forbidden", "401 Unauthorized")):
            hint = "check blobs_key_id and blobs_secret; the key must be allowed to get, put, delete and list there"
            return StorageFailed(f"{self.name} denies access", code="storage.denied", hint=hint)
        place = self._place.endpoint or "the store"
        return StorageFailed(
            f"{self.name} cannot be used: {_short(text)}",
            code="storage.unreachable",
            hint=f"see whether {place} is up and can be reached from here; the coordinator retries by itself",
        )


FULL = ("QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "507 Insufficient", "Storage quota")
DENIED = (faults.PermissionDeniedError, faults.UnauthenticatedError, PermissionError)


def _short(text: str) -> str:
    """Return an error's message without the request, the number of tries and the debug form."""
    return " ".join(text.partition("Debug source")[0].rpartition(" - ")[2].split())[:200]
