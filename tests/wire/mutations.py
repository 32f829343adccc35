"""Bytes that an attacker might send: seeded changes to valid bodies and frames, of their bytes and of their JSON."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

NASTY = (
    *("0", "1", "-1", "-0", "2", "7", "1.0", "0.5", "-1e3", "1e400", "9007199254740993", "18446744073709551616"),
    *(
        "4294967296",
        "9223372036854775807",
        "9223372036854775808",
        "9" * 300,
        "9" * 5000,
        "-" + "9" * 5000,
        "0." + "3" * 999,
    ),
    *("NaN", "Infinity", "-Infinity", "true", "false", "null", '""', "[]", "{}", "[[]]", "[0]", "[0,0]", "[null]"),
    *(
        "[1,1,1,1,1,1,1,1,1]",
        "[-1]",
        "[true]",
        "[1.0]",
        "[0,9007199254740992,9007199254740992]",
        "[4294967296,4294967296]",
    ),
    *(
        '"BF16"',
        '"F32"',
        '"f32"',
        '"F8_E4M3"',
        '"U64"',
        '"I64"',
        '"BOOL"',
        '"C64"',
        '"\\u0000"',
        '"\\ud800"',
        '"\\udfff\\ud800"',
    ),
    *(
        '"@"',
        '"@/"',
        '"@a"',
        '"@model"',
        '"@model/w"',
        '"@c"',
        '"@c/w"',
        '"@c/@d"',
        '"__metadata__"',
        '"' + "n" * 600 + '"',
    ),
    *(
        '"a"',
        '"A"',
        '"../etc/passwd"',
        '"é"',
        '"\\n"',
        '"NaN"',
        '"Infinity"',
        '"train"',
        '"report"',
        '"timer"',
        '"norm"',
    ),
    *(
        "[" * 400 + "]" * 400,
        '{"a":' * 400 + "1" + "}" * 400,
        "[" * 3000 + "]" * 3000,
        "[" * 3000,
        "[1" + ",1" * 3000 + "]",
    ),
)
LENGTHS = (
    0,
    1,
    2,
    3,
    7,
    8,
    255,
    2**16,
    2**16 + 1,
    2**22,
    2**22 + 1,
    2**24 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**63,
    2**64 - 1,
)


class Object(list[tuple[str, Any]]):
    """A JSON object as pairs, so that it can name a thing twice."""


class Token(str):
    """Text that stands in JSON as it is."""

    __slots__ = ()


def text_of(value: Any, random: Random, untidy: float) -> str:
    """JSON text of pairs, lists, tokens and plain values; now and then with space where none is needed."""
    gap = random.choice([" ", "\n", "\t "]) if random.random() < untidy else ""
    if isinstance(value, Token):
        return str(value)
    if isinstance(value, Object):
        inner = (text_of(name, random, 0) + gap + ":" + text_of(item, random, untidy) for name, item in value)
        return "{" + gap + ",".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ",".join(text_of(item, random, untidy) for item in value) + gap + "]"
    return json.dumps(value, ensure_ascii=isinstance(value, str) and random.random() < 0.1)


def _containers(value: Any) -> list[Any]:
    found = [value] if isinstance(value, list) and value else []
    for item in value if isinstance(value, list) else ():
        found += _containers(item[1] if isinstance(value, Object) else item)
    return found


def spoil(value: Any, random: Random) -> None:
    """Change something somewhere inside: a value, a name; take away, double, reorder or add."""
    places = _containers(value)
    if not places:
        return
    place = random.choice(places)
    index = random.randrange(len(place))
    named = isinstance(place, Object)
    token = Token(random.choice(NASTY))
    match random.randrange(9):
        case 0 | 1 | 2:
            place[index] = (place[index][0], token) if named else token
        case 3:
            del place[index]
        case 4:
            place.insert(random.randrange(len(place) + 1), place[index])
        case 5:
            random.shuffle(place)
        case 6 if named:
            names = [text for text in NASTY if text.startswith('"')]
            place[index] = (Token(random.choice(names)), place[index][1])
        case 7:
            place.append((Token(random.choice(['"more"', '"node"', '"norm"', '"w"'])), token) if named else token)
        case _:
            other = random.choice(place)
            place[index] = (place[index][0], other[1]) if named else other


def spoilt_json(head: bytes, random: Random) -> bytes:
    """The same JSON with one to three things changed."""
    value = json.loads(head, object_pairs_hook=Object)
    for _ in range(random.randint(1, 3)):
        spoil(value, random)
    return text_of(value, random, random.choice([0.0, 0.0, 0.3])).encode("utf-8", "surrogatepass")


def spoilt_bytes(data: bytes, corpus: list[bytes], random: Random) -> bytes:
    """The same bytes with one to four changes."""
    found = bytearray(data)
    for _ in range(random.randint(1, 4)):
        place = random.randrange(len(found) + 1)
        until = min(len(found), place + random.choice([1, 2, 8, 64, 100_000]))
        match random.randrange(7):
            case 0 if place < len(found):
                found[place] ^= 1 << random.randrange(8)
            case 1 if place < len(found):
                found[place] = random.choice(b'\x00\xff"{}[],:0-9e \\@')
            case 2:
                del found[place:until]
            case 3:
                found[place:place] = random.randbytes(random.choice([1, 4, 8, 200]))
            case 4:
                found[place:place] = found[place:until]
            case 5:
                other = random.choice(corpus)
                start = random.randrange(len(other))
                found[place:until] = other[start : start + random.choice([1, 8, 100, 100_000])]
            case _:
                del found[random.choice([place, len(found) // 2, 12]) :]
    return bytes(found)


def body(corpus: list[bytes], random: Random) -> bytes:
    """A spoilt body."""
    data = random.choice(corpus)
    length = 8 + int.from_bytes(data[:8], "little")
    match random.randrange(4):
        case 0:
            return spoilt_bytes(data, corpus, random)
        case 1:
            return random.choice(LENGTHS).to_bytes(8, "little") + data[8:]
        case _:
            text = spoilt_json(data[8:length], random)
            text += b" " * (-len(text) % 8 if random.random() < 0.9 else random.randrange(9))
            rest = data[length:]
            rest = random.choice([rest, rest, rest, b"\xff" * len(rest), random.randbytes(random.randrange(200))])
            return len(text).to_bytes(8, "little") + text + rest


def frame(corpus: list[bytes], random: Random) -> bytes:
    """A spoilt frame."""
    data = random.choice(corpus)
    length = 4 + int.from_bytes(data[:4], "big")
    match random.randrange(4):
        case 0:
            return spoilt_bytes(data, corpus, random)
        case 1:
            return (random.choice(LENGTHS) % 2**32).to_bytes(4, "big") + data[4:]
        case _:
            text = spoilt_json(data[4:length], random)
            return len(text).to_bytes(4, "big") + text + data[length:]


Make = Callable[[list[bytes], Random], bytes]
