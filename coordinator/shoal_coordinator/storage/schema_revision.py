"""The revision of the database's tables. Alembic is loaded only to make or change tables."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect

from shoal.core.errors import StorageFailed

if TYPE_CHECKING:
    from alembic.config import Config

_MIGRATING = threading.Lock()
"""Alembic has one context for the whole process."""

_MIGRATIONS = Path(__file__).parent / "migrations"


def newest() -> str:
    """Return this release's revision: that of the last file, whose name begins with it."""
    return max(path.name.partition("_")[0] for path in (_MIGRATIONS / "versions").glob("*_*.py"))


def is_current(connection: Connection) -> bool:
    """Return whether the tables are of this release."""
    if not inspect(connection).has_table("alembic_version"):
        return False
    found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all()
    return list(found) == [newest()]


def refuse(connection: Connection, *, also_older: bool) -> None:
    """Raise `StorageFailed` for a database that a later release has migrated, or of an older release, because only the
    leader migrates."""
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    current = MigrationContext.configure(connection).get_current_revision()
    scripts = ScriptDirectory.from_config(_alembic(""))
    if current is not None and current not in {script.revision for script in scripts.walk_revisions()}:
        raise StorageFailed(
            f"the database is of a newer release of shoal (revision {current})",
            code="storage.newer",
            hint="install that release, or give another folder with --data",
        )
    if also_older and current != scripts.get_current_head():
        raise StorageFailed(
            "the database still has the tables of an earlier release",
            code="storage.older",
            hint="stop its leader, which runs that release; a leader of this release then migrates the database",
        )


def migrate(engine: Engine) -> None:
    """Bring the tables to this release."""
    from alembic import command

    config = _alembic(str(engine.url))
    with _MIGRATING, engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _alembic(url: str) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config
