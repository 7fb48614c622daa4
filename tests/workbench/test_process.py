"""Memory that threads free: it goes back to the system. Each test starts a process, since the C
library's settings hold for a process.
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

def held():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", status)[1]) / 1024

def in_threads(work, count):
    together = threading.Barrier(count)
    def one():
        together.wait()
        work()
        together.wait()
    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""
BLOCKS = """
def work():
    blocks = [library.malloc(65536) for _ in range(500)]
    for block in blocks: ctypes.memset(block, 1, 65536)
    for block in blocks[:-1]: library.free(block)  # the last one stays, above all that are free

before = held()
in_threads(work, 4)
kept = held() - before
with process.released_memory(): pass
print(kept, held() - before)
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

STAYING = """
import gc
kept = [[] for _ in range(5)]

def looked_at():
    gc.collect()
    return sum(one in map(id, gc.get_objects()) for one in map(id, kept))

before = looked_at()
with process.permanent_objects():
    inside = gc.isenabled()
    kept += [[] for _ in range(5)]
kept += [[] for _ in range(3)]
print(before, int(inside), looked_at(), int(gc.isenabled()))
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="heaps of glibc")


def printed(*program: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", "\n".join((LIBRARY, *program))],
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(word) for word in done.stdout.split()]


def test_free_memory_of_all_threads_goes_back():
    held_megabytes, remaining_megabytes = printed(BLOCKS)
    assert held_megabytes > 100  # MB, of 125: else there was nothing to give back
    assert remaining_megabytes < 20


def test_threads_share_two_heaps():
    work = "in_threads(lambda: library.malloc(1000), 6)"
    assert printed(HEAPS, work, "print(heaps())")[0] > 2  # else there was nothing to share
    assert printed(HEAPS, "process.limit_arenas()", work, "print(heaps())") == [2]


def test_what_stays_is_not_searched_for_garbage():
    assert printed(STAYING) == [5, 0, 3, 1]
