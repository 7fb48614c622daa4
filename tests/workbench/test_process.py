"""Memory freed by threads and returned to the system.

Each test starts a process, since settings of the C library hold for a process.
"""

import subprocess
import sys

import pytest

LIBRARY = """
import ctypes, re, tempfile, threading
from pathlib import Path
from workbench.base import process

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def resident_megabytes():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", status)[1]) / 1024

def in_threads(work, count):
    barrier = threading.Barrier(count)
    def run():
        barrier.wait()
        work()
        barrier.wait()
    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""
BLOCKS = """
def work():
    blocks = [library.malloc(65536) for _ in range(500)]
    for block in blocks: ctypes.memset(block, 1, 65536)
    for block in blocks[:-1]: library.free(block)  # the last block stays, above all free ones

before = resident_megabytes()
in_threads(work, 4)
held = resident_megabytes() - before
with process.released_memory(): pass
print(held, resident_megabytes() - before)
"""
HEAPS = """
library.fopen.restype = ctypes.c_void_p
library.fopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
library.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
library.fclose.argtypes = [ctypes.c_void_p]

def heaps():
    with tempfile.NamedTemporaryFile() as file:
        stream = library.fopen(file.name.encode(), b"w")
        library.malloc_info(0, stream)
        library.fclose(stream)
        return Path(file.name).read_text().count("<heap nr=")
"""

PERMANENT = """
import gc
lists = [[] for _ in range(5)]

def tracked():
    gc.collect()
    return sum(number in map(id, gc.get_objects()) for number in map(id, lists))

before = tracked()
with process.permanent_objects():
    inside = gc.isenabled()
    lists += [[] for _ in range(5)]
lists += [[] for _ in range(3)]
print(before, int(inside), tracked(), int(gc.isenabled()))
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="heaps of glibc")


def run_program(*program: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", "\n".join((LIBRARY, *program))],
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(word) for word in done.stdout.split()]


def test_memory_freed_by_all_threads_returns_to_the_system():
    held_megabytes, remaining_megabytes = run_program(BLOCKS)
    assert held_megabytes > 100  # MB, of 125; otherwise the test measures nothing
    assert remaining_megabytes < 20


def test_threads_share_two_heaps():
    work = "in_threads(lambda: library.malloc(1000), 6)"
    assert run_program(HEAPS, work, "print(heaps())")[0] > 2  # otherwise the limit has no effect
    assert run_program(HEAPS, "process.limit_arenas()", work, "print(heaps())") == [2]


def test_permanent_objects_are_not_searched_for_garbage():
    assert run_program(PERMANENT) == [5, 0, 3, 1]
