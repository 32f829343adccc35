"""Settings of glibc: the address of a block tells whether it is in the main heap."""

import os
import subprocess
import sys

import pytest

ALLOCATE = """
import ctypes, sys, threading
from shoal import memory

if sys.argv[1]:
    memory.configure_malloc(getattr(memory, sys.argv[1]))
malloc = ctypes.CDLL(None).malloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
found = []

def allocate():
    found.append(malloc(int(sys.argv[2])))

thread = threading.Thread(target=allocate)
allocate() if sys.argv[3] == "main" else (thread.start(), thread.join())
heap = next(line for line in open("/proc/self/maps") if line.rstrip().endswith("[heap]"))
start, end = (int(number, 16) for number in heap.split()[0].split("-"))
print("heap" if start <= found[0] < end else "elsewhere")
"""
MIB = 1 << 20


def place_of(settings: str, nbytes: int, thread: str, **environment: str) -> str:
    """Return where a new process with these settings puts a block of a thread."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", ALLOCATE, settings, str(nbytes), thread]
    done = subprocess.run(command, env=plain | environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("settings", "nbytes", "thread", "place"),
    [
        ("", 16 * MIB, "main", "elsewhere"),
        ("KEEP_BIG_BLOCKS", 16 * MIB, "main", "heap"),
        ("REUSE_STACKS", 16 * MIB, "main", "heap"),
        ("", 100_000, "other", "elsewhere"),
        ("SHARE_HEAP", 100_000, "other", "heap"),
        ("SHARE_HEAP", 2 * MIB, "other", "elsewhere"),
    ],
)
def test_blocks_are_placed_as_configured(settings: str, nbytes: int, thread: str, place: str) -> None:
    assert place_of(settings, nbytes, thread) == place


def test_the_environments_settings_are_kept() -> None:
    assert place_of("KEEP_BIG_BLOCKS", 16 * MIB, "main", MALLOC_ARENA_MAX="4") == "elsewhere"
