"""Which store an address names.

(empty)                 a folder within the coordinator's own
/path, file:///path     a folder that several coordinators may share
memory://NAME           memory, for tests
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from coordinator.blobs.folder import FolderStore
from coordinator.blobs.memory import MemoryStore
from coordinator.blobs.store import BlobStore
from coordinator.settings import Settings
from shoal.core.errors import StorageFailed


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
        return MemoryStore(rest)
    raise StorageFailed(
        f"blobs = {url!r} names no store",
        code="storage.address",
        hint="leave it empty, or say /path or file:///path",
    )
