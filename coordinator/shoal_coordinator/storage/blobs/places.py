"""Which store an address names.

(empty)                 a folder within the coordinator's own
/path, file:///path     a folder that several coordinators may share
memory://NAME           memory, for tests
    s3://BUCKET/PREFIX?…    a store that speaks S3
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from shoal.core.errors import StorageFailed
from shoal_coordinator.blobs.folder import FolderStore
from shoal_coordinator.blobs.memory import MemoryStore
from shoal_coordinator.blobs.store import BlobStore
from shoal_coordinator.settings import Settings


def reach(settings: Settings) -> BlobStore:
    """The store, known to take and give. Raises `StorageFailed`, with what is wrong and what to do."""
    store = open_store(settings)
    store.check()
    return store


def open_store(settings: Settings) -> BlobStore:
    """The store of the setting `blobs`. Raises `StorageFailed` for an address that names none."""
    url = settings.blobs
    if not url:
        return FolderStore(settings.data / "bodies", shared=False)
    scheme, separator, rest = url.partition("://")
    if not separator:
        return FolderStore(Path(url).absolute(), shared=True)
    if scheme == "file" and rest.startswith("/"):
        return FolderStore(Path(unquote(urlsplit(url).path)), shared=True)
    if scheme == "memory":
        return MemoryStore(rest, settings.near_bytes_max)
    if scheme == "s3":
        try:
            from shoal_coordinator.blobs.s3 import S3Store
        except ModuleNotFoundError as error:
            raise StorageFailed(
                f"{error.name} is not installed", code="usage.extra", hint="pip install 'shoal[s3]'"
            ) from None
        return S3Store(settings)
    raise StorageFailed(
        f"blobs = {scheme}://… names no store",  # the rest may hold secrets
        code="storage.address",
        hint="leave it empty, or say /path, file:///path or s3://bucket/prefix?endpoint=URL",
    )
