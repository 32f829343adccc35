"""Addresses of stores.

(empty)                 a folder within the coordinator's own
/path, file:///path     a folder that several coordinators may share
memory://NAME           memory, for tests
s3://BUCKET/PREFIX?…    a store that speaks S3
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from shoal.core.errors import StorageFailed
from shoal.extras import install_hint
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.blobs.folder import FolderStore
from shoal_coordinator.storage.blobs.memory import MemoryStore
from shoal_coordinator.storage.blobs.store import BlobStore


def reach(settings: Settings) -> BlobStore:
    """Open the store, and check that it can be written and read. Raises `StorageFailed`, with a remedy."""
    store = open_store(settings)
    store.check()
    return store


def open_store(settings: Settings) -> BlobStore:
    """Open the store of the setting `blobs`. Raises `StorageFailed` for an invalid address."""
    url = settings.blobs
    if not url:
        return FolderStore(settings.data / "blobs", shared=False)
    scheme, separator, rest = url.partition("://")
    if not separator:
        return FolderStore(Path(url).absolute(), shared=True)
    if scheme == "file" and rest.startswith("/"):
        return FolderStore(Path(unquote(urlsplit(url).path)), shared=True)
    if scheme == "memory":
        return MemoryStore(rest, settings.blob_cache_bytes_max)
    if scheme == "s3":
        try:
            from shoal_coordinator.storage.blobs.s3 import S3Store
        except ModuleNotFoundError as error:
            text = f"{error.name} is not installed"
            raise StorageFailed(text, code="usage.extra", hint=install_hint("s3")) from None
        return S3Store(settings)
    raise StorageFailed(
        f"blobs = {scheme}://… names no store",  # the rest may hold secrets
        code="storage.address",
        hint="leave it empty, or write /path, file:///path or s3://bucket/prefix?endpoint=URL",
    )
