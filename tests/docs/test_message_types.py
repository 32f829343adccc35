"""The documents list the types of messages as heads and the journal name them."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from shoal.core.protocol.machine import HubEvent
from shoal.core.protocol.message import Leave
from shoal.core.protocol.peer_message import PeerMessage
from shoal.wire import codec
from tests.conventions.sources import ROOT

TYPE = re.compile(r"`([a-z_]+)`")
FRAMES = re.compile(r"^\| type \| from \| fields \|\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)
OTHER = re.compile(r"^Other types\. (.*?)\n\n", re.MULTILINE | re.DOTALL)
BATCHES = re.compile(r"^\| types of messages \| about \|\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)


def found(pattern: re.Pattern[str], document: str) -> str:
    """Return the part of a document that lists types."""
    match = pattern.search((ROOT / "docs" / document).read_text())
    assert match is not None, document
    return match[1]


def test_the_protocol_lists_the_types_of_frames_and_of_the_journal() -> None:
    rows = [line.split("|")[1].strip() for line in found(FRAMES, "reference/protocol.md").splitlines()]
    listed = rows + TYPE.findall(found(OTHER, "reference/protocol.md"))
    assert sorted(listed) == sorted(kind.type_name for kind in get_args(HubEvent))


def test_the_page_on_peers_lists_the_types_of_batches() -> None:
    listed = TYPE.findall(found(BATCHES, "reference/peer-protocol.md"))
    assert sorted(listed) == sorted(kind.type_name for kind in get_args(PeerMessage))


@pytest.mark.parametrize("kinds", [get_args(HubEvent), get_args(PeerMessage)], ids=["hub", "peers"])
def test_each_class_declares_a_type_of_its_own(kinds: tuple[type, ...]) -> None:
    names = [vars(kind)["type_name"] for kind in kinds]
    assert len(set(names)) == len(names)


def test_the_name_of_a_class_is_not_sent() -> None:
    renamed = type("Departure", (Leave,), {})
    assert codec.to_json(renamed("a")) == {"type": "leave", "node": "a"}
