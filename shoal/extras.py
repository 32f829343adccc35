"""Errors for packages that only an extra of shoal installs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from shoal.core.errors import ShoalError

EXTRAS = {
    "accelerate": "hf",
    "alembic": "coordinator",
    "cryptography": "peer",
    "fastapi": "coordinator",
    "lightning": "lightning",
    "onnxscript": "onnx",
    "peft": "hf",
    "PIL": "images",
    "pyarrow": "tables",
    "sklearn": "sklearn",
    "sqlalchemy": "coordinator",
    "torch": "torch",
    "transformers": "hf",
    "uvicorn": "coordinator",
    "xgboost": "xgboost",
}
"""The smallest extra that brings a package; a caller who knows better names its own."""


def extra_of(error: ModuleNotFoundError) -> str:
    """Return the extra that brings the missing package; empty where no extra does."""
    return EXTRAS.get((error.name or "").partition(".")[0], "")


def install_hint(extra: str, *options: str) -> str:
    """Return how to install an extra, with these options of pip. No package index has shoal."""
    pip = " ".join(("pip install", *options))
    return f"{pip} '.[{extra}]' in a clone of shoal (with its wheel: {pip} 'shoal-….whl[{extra}]')"


def not_installed(error: ModuleNotFoundError, extra: str = "", what: str = "", instead: str = "") -> ShoalError:
    """Make the error for a missing package: `what` needs it, `extra` brings it, `instead` does without it."""
    name = (error.name or "a package").partition(".")[0]
    message = f"{what} needs {name}, which is not installed" if what else f"{name} is not installed"
    hint = install_hint(extra or extra_of(error)) + (f", or {instead}" if instead else "")
    return ShoalError(message, code="usage.extra", hint=hint)


def lazy(homes: Mapping[str, str], module: str, name: str) -> Any:
    """Return a name of a package from the module that `homes` says. Raises `ShoalError` where an extra is missing."""
    if name not in homes:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    try:
        return getattr(import_module(homes[name]), name)
    except ModuleNotFoundError as error:
        if not extra_of(error):
            raise
        raise not_installed(error, what=name) from error
