"""The floor: the same bytes over HTTP on loopback, from plain sockets, checked and summed, and nothing else.

The server is one event loop. A client asks for the model (the answer waits until the round begins), adds a number, and
sends it back; the server proves the update finite by its norm, adds it to a float32 sum while the next arrives, and
divides. No journal, disk, digest, validation, authentication or retry.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import numpy as np
from cell import CLIENT, LAYERS, SERVER, Cell, layers, mark, read_cell, start, watch

BLOCK = 1 << 20
READY = "port"


class Rounds:
    """The model of the current round and the sum of its updates."""

    def __init__(self, model: np.ndarray, nodes: int) -> None:
        self.model, self.begun = model, asyncio.Condition()
        self._sum, self._nodes, self._summed = np.zeros_like(model), nodes, 0
        self.number = 0

    async def fold(self, update: np.ndarray) -> None:
        """Check an update and add it; the last one begins the next round."""
        for start_ in range(0, len(update), BLOCK // 4):
            part = update[start_ : start_ + BLOCK // 4]
            if not np.isfinite(part @ part):
                raise ValueError("the update is not finite")
            self._sum[start_ : start_ + BLOCK // 4] += part
        self._summed += 1
        if self._summed == self._nodes:
            self.model, self._sum = self._sum / np.float32(self._nodes), np.zeros_like(self.model)
            self._summed = 0
            await self.begin()

    async def begin(self) -> None:
        """Begin the next round."""
        self.number += 1
        mark()
        async with self.begun:
            self.begun.notify_all()


async def serve(cell: Cell) -> None:
    """Answer all clients for ever."""
    rounds = Rounds(np.concatenate(layers(cell)), cell.nodes)
    loop, listening = asyncio.get_running_loop(), socket.create_server(("127.0.0.1", 0), backlog=256)
    listening.setblocking(False)
    (cell.folder / READY).write_text(str(listening.getsockname()[1]))
    answers: set[asyncio.Task[None]] = set()
    while len(answers) < cell.nodes:  # the first round begins when all are there
        link, _ = await loop.sock_accept(listening)
        answers.add(asyncio.create_task(answer(rounds, link)))
    await rounds.begin()
    await asyncio.gather(*answers)


async def answer(rounds: Rounds, link: socket.socket) -> None:
    """Send the model of each new round, and take the update."""
    loop, seen = asyncio.get_running_loop(), 0
    update = np.empty_like(rounds.model)
    body = memoryview(update).cast("B")
    head = bytearray(256)
    while True:
        await loop.sock_recv_into(link, head)
        async with rounds.begun:
            while rounds.number == seen:
                await rounds.begun.wait()
        seen = rounds.number
        await loop.sock_sendall(link, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        await loop.sock_sendall(link, memoryview(rounds.model).cast("B"))
        await loop.sock_recv_into(link, head)
        await loop.sock_sendall(link, b"HTTP/1.1 100 Continue\r\n\r\n")
        place = 0
        while place < len(body):
            place += await loop.sock_recv_into(link, body[place : place + BLOCK])
        await rounds.fold(update)
        await loop.sock_sendall(link, b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")


def join(cell: Cell) -> None:
    """Take part as a client."""
    model = np.empty(cell.numbers * LAYERS, np.float32)
    body = memoryview(model).cast("B")
    while not (cell.folder / READY).exists() or not (port := (cell.folder / READY).read_text()):
        pass
    with socket.create_connection(("127.0.0.1", int(port))) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            link.sendall(b"GET /model HTTP/1.1\r\nHost: floor\r\n\r\n")
            _skip_head(link)
            place = 0
            while place < len(body):
                place += link.recv_into(body[place : place + BLOCK])
            model += np.float32(1e-6)
            head = b"PUT /update HTTP/1.1\r\nHost: floor\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
            link.sendall(head % len(body))
            _skip_head(link)
            link.sendall(body)
            _skip_head(link)


def _skip_head(link: socket.socket) -> None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        came = link.recv(1)
        if not came:
            sys.exit(0)
        head += came


def main() -> None:
    """Run the server, a client, or the program that starts and watches them."""
    role = sys.argv.pop(1) if sys.argv[1] in (SERVER, CLIENT) else None
    cell = read_cell()
    if role == SERVER:
        asyncio.run(serve(cell))
    elif role == CLIENT:
        join(cell)
    else:
        program = [sys.executable, __file__]
        began = [start(cell, SERVER, SERVER, [*program, SERVER, *sys.argv[1:]])]
        began += [start(cell, CLIENT, f"client-{n}", [*program, CLIENT, *sys.argv[1:]]) for n in range(cell.nodes)]
        watch(cell, began)


if __name__ == "__main__":
    main()
