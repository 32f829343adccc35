"""The socket that a peer's requests come in by."""

from __future__ import annotations

import socket

from shoal.core.errors import Unreachable


def listen(host: str, port: int) -> socket.socket:
    """The listening socket. Raises `Unreachable` when the port is in use.

    Its protocol is named, because asyncio turns Nagle's algorithm off only for sockets whose protocol it knows, and the
    accepted ones inherit it: else the second segment of an answer waits 40 ms for the first to be acknowledged.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        hint = "stop what uses it, or choose another address with --listen"
        text = f"cannot listen on {host}:{port}: {error.strerror}"
        raise Unreachable(text, code="port.in-use", hint=hint) from None
    return sock
