"""The connection of commands to a coordinator: by options and settings, and by the token of one on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import SecretStr

from shoal.cli.terminal.output import out
from shoal.client.api import CoordinatorApi, opened
from shoal.configuration import ClientSettings, load
from shoal.runtime.http import coordinator_url


@contextmanager
def connect(url: str | None = None, token: str | None = None) -> Iterator[CoordinatorApi]:
    """Yield a client for the coordinator that options and settings name. This sends no request."""
    settings = client_settings(url, token)
    with opened(settings, settings.token.get_secret_value(), out.detail) as api:
        yield api
        if api.warning:
            out.warn(api.warning)


def client_settings(url: str | None = None, token: str | None = None) -> ClientSettings:
    """Return the settings of a client, with the token of a coordinator on this machine if there is no other."""
    settings = load(ClientSettings, "client", config=out.flags.config, given={"url": url, "token": token})
    if settings.token.get_secret_value():
        return settings
    return settings.model_copy(update={"token": SecretStr(own_token(settings.url))})


def own_token(url: str) -> str:
    """Return the operator's token of a coordinator on this machine; empty if it is not readable."""
    from shoal_coordinator.settings import Settings

    if not coordinator_url.is_loopback(coordinator_url.parse(url)):
        return ""
    path = load(Settings, "coordinator", config=out.flags.config).data / "operator.token"
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
