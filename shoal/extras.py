"""Errors for packages that only an extra of shoal installs."""

from __future__ import annotations

from shoal.core.errors import ShoalError

EXTRAS = {
    "alembic": "coordinator",
    "cryptography": "peer",
    "fastapi": "coordinator",
    "sqlalchemy": "coordinator",
    "torch": "torch",
    "uvicorn": "coordinator",
}
"""The smallest extra that brings a package; a caller who knows better names its own."""


def extra_of(error: ModuleNotFoundError) -> str:
    """Return the extra that brings the missing package; empty where no extra does."""
    return EXTRAS.get((error.name or "").partition(".")[0], "")


def not_installed(error: ModuleNotFoundError, extra: str = "", what: str = "", instead: str = "") -> ShoalError:
    """Make the error for a missing package: `what` needs it, `extra` brings it, `instead` does without it."""
    name = (error.name or "a package").partition(".")[0]
    message = f"{what} needs {name}, which is not installed" if what else f"{name} is not installed"
    hint = f"pip install 'shoal[{extra or extra_of(error)}]'{f', or {instead}' if instead else ''}"
    return ShoalError(message, code="usage.extra", hint=hint)
