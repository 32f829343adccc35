"""Settings of a person or a machine, found the same way by every command and every process.

    an option of the command             shoal run --url http://host:8080 …
    the environment                      SHOAL_CLIENT__URL=http://host:8080
      a file that it names, for secrets  SHOAL_CLIENT__TOKEN_FILE=/run/secrets/token
    one TOML file, the first of          --config FILE, $SHOAL_CONFIG, ./shoal.toml, $XDG_CONFIG_HOME/shoal/config.toml
    defaults

Higher lines win. A file has one table per section, and a section is flat:

    [client]
    url = "http://host:8080"

An unknown section or key is an error with a suggestion, never ignored. A variable without `__` is left alone:
Kubernetes, for one, sets `SHOAL_PORT` beside any service that is called shoal.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError

from shoal.core.errors import ShoalError

M = TypeVar("M", bound=BaseModel)

PREFIX = "SHOAL_"
SECTIONS = ("client", "coordinator", "data", "edge")
"""All sections; the owner of each defines its keys."""

LISTED_MAX = 8
"""Number of keys up to which a hint lists them all."""

DEFAULT_URL = "http://127.0.0.1:8080"

_URL = re.compile(r"https?://[^/\s]+(/.*)?")


def correction(text: str) -> str:
    """Return an address with http:// added if only that is missing."""
    if "://" in text or not text.strip("/") or not text.isprintable() or " " in text:
        return "write for example http://127.0.0.1:8080"
    return f"write http://{text.lstrip('/')}"


def _is_url(text: str) -> str:
    if not _URL.fullmatch(text):
        raise ValueError(f"{text!r} is not an address: {correction(text)}")
    return text


Url = Annotated[str, AfterValidator(_is_url)]
"""An address that begins with http:// or https://."""
UrlOrNone = Annotated[str, AfterValidator(lambda text: _is_url(text) if text else text)]
"""The same, or nothing."""

Layer = dict[str, tuple[Any, str]]
"""Values of one kind of source: key -> (value, name of the source)."""


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / "data"


class ClientSettings(BaseModel):
    """Section `client`: the connection of commands to a coordinator."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Url = Field(DEFAULT_URL, description="address of the coordinator")
    token: SecretStr = Field(SecretStr(""), description="operator token (sho_…), or that of a viewer")
    ca_file: Path | None = Field(None, description="certificates to trust instead of the system's (PEM)")
    insecure: bool = Field(False, description="accept any certificate: for trying out only")
    timeout_s: float = Field(30.0, gt=0, le=3600, description="seconds to wait for an answer")


class DataSettings(BaseModel):
    """Section `data`: the folder of data sets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cache: Path = Field(default_factory=_cache, description="folder of downloaded data sets")


@dataclass(frozen=True)
class Origin:
    """A setting with its value and source (`default`, a file, a variable or an option)."""

    section: str
    key: str
    value: Any
    source: str


def load(model: type[M], section: str, *, config: Path | None = None, given: Mapping[str, Any] | None = None) -> M:
    """Return the settings of a section. `given` holds options of the command line; None means absent.

    Raises `ShoalError` (`config.…`) that names the source and the key.
    """
    return _resolve(model, section, config, given or {})[0]


def origins(
    model: type[BaseModel], section: str, *, config: Path | None = None, given: Mapping[str, Any] | None = None
) -> list[Origin]:
    """Return the source of each value of a section, in the order of the fields. Raises as `load`."""
    settings, sources = _resolve(model, section, config, given or {})
    return [
        Origin(section, key, getattr(settings, key), sources.get(key, "default")) for key in type(settings).model_fields
    ]


def config_file(config: Path | None = None) -> Path | None:
    """Return the settings file, if any. Raises `ShoalError` when the named file does not exist."""
    named = config or (Path(found) if (found := os.environ.get(f"{PREFIX}CONFIG")) else None)
    if named is not None:
        if not named.is_file():
            by = "--config" if config else f"{PREFIX}CONFIG"
            raise ShoalError(f"no file {named}, named by {by}", code="config.missing", hint="check the path")
        return named
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return next((path for path in (Path("shoal.toml"), home / "shoal" / "config.toml") if path.is_file()), None)


def _resolve(model: type[M], section: str, config: Path | None, given: Mapping[str, Any]) -> tuple[M, dict[str, str]]:
    """Return the settings, and the source of each value that is not a default."""
    assert section in SECTIONS, section
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in (_file(model, section, config), _environment(model, section), _given(given)):
        for key, (value, source) in layer.items():
            values[key], sources[key] = value, source
    try:
        return model.model_validate(values), sources
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        where, name = sources.get(key, "settings"), f"{section}.{key}" if key else section
        raise ShoalError(
            f"{where}: {name}: {first['msg'].removeprefix('Value error, ')}", code="config.invalid"
        ) from None


def _given(given: Mapping[str, Any]) -> Layer:
    return {key: (value, "command line") for key, value in given.items() if value is not None}


def _file(model: type[BaseModel], section: str, config: Path | None) -> Layer:
    path = config_file(config)
    if path is None:
        return {}
    table = _read(path).get(section, {})
    if not isinstance(table, dict):
        raise ShoalError(f"{path}: {section} must be a table", code="config.invalid", hint=f"write [{section}]")
    _known(table, model.model_fields, f"{path}: [{section}]")
    return {key: (value, str(path)) for key, value in table.items()}


def _read(path: Path) -> dict[str, Any]:
    """Return a file's tables after checking its sections."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ShoalError(f"{path}: {error}", code="config.unreadable") from None
    _known(tables, SECTIONS, str(path))
    return tables


def _known(found: Iterable[str], known: Iterable[str], where: str, shown: str = "") -> None:
    """Raise `ShoalError` for the first unknown key."""
    names = sorted(known)
    for key in found:
        if key not in names:
            close = get_close_matches(key, names, 1)
            every = f"known: {', '.join(names)}" if len(names) <= LISTED_MAX else "shoal config show lists all settings"
            hint = f"did you mean {close[0]!r}?" if close else every
            raise ShoalError(f"{where}: unknown key {shown or key!r}", code="config.unknown", hint=hint)


def _environment(model: type[BaseModel], section: str) -> Layer:
    """Return values of variables, and of the files that variables name."""
    prefix = f"{PREFIX}{section.upper()}__"
    _known_variables(model, prefix)
    texts = {name.lower(): text for name, text in os.environ.items()}
    layer = {
        key: (_parsed(texts[name.lower()], field.annotation, name), name)
        for key, field in model.model_fields.items()
        if (name := prefix + key.upper()).lower() in texts
    }
    for key, (name, text) in _secrets(model, prefix).items():
        if key in layer:
            raise ShoalError(f"both {layer[key][1]} and {name} are set", code="config.twice", hint="unset one of them")
        layer[key] = (text, name)
    return layer


def _parsed(text: str, annotation: Any, name: str) -> Any:
    """Return a variable's value: JSON for lists and tables, else the text."""
    if not _is_structured(annotation):
        return text
    try:
        return json.loads(text)
    except ValueError:
        hint = """write a list as '["a", "b"]', a table as '{"a": 1}'"""
        raise ShoalError(f"{name} is not JSON", code="config.invalid", hint=hint) from None


def _is_structured(annotation: Any) -> bool:
    """Return whether a type is a list or table, or a union with one."""
    origin = get_origin(annotation) or annotation
    if isinstance(origin, type) and issubclass(origin, list | tuple | set | frozenset | dict):
        return True
    return any(_is_structured(one) for one in get_args(annotation))


def _known_variables(model: type[BaseModel], prefix: str) -> None:
    """Raise `ShoalError` for a variable of an unknown section or key."""
    for name in os.environ:
        section, nested, key = name.removeprefix(PREFIX).partition("__")
        if not name.startswith(PREFIX) or not nested:
            continue
        _known([section.lower()], SECTIONS, "environment", name)
        if name.startswith(prefix) and key.lower() not in model.model_fields:
            _known([key.lower().removesuffix("_file")], model.model_fields, "environment", name)


def _secrets(model: type[BaseModel], prefix: str) -> dict[str, tuple[str, str]]:
    """Return (variable, content of its file) for each key set by a file."""
    found = {}
    for key in model.model_fields:
        name = f"{prefix}{key.upper()}_FILE"
        if name not in os.environ or f"{key}_file" in model.model_fields:  # that one is really called so
            continue
        found[key] = (name, read_secret(os.environ[name], name))
    return found


def read_secret(path: str | Path, name: str) -> str:
    """Return the secret in a file. Raises `ShoalError`, with the name of the setting, where it cannot be read."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ShoalError(f"{name}: {error}", code="config.unreadable", hint="check the path") from None
