"""How long the command line takes until it says something, on a machine that does nothing else."""

import os
import pty
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from .page import ROOT, empty_cache, machine, note, table, write_section

ROUNDS = 5
# what is typed, and the seconds within which it should answer
COMMANDS = {
    "--help": 0.4,
    "methods": 0.8,
    "compress demo-llama --method a4 --out OUT": 0.4,
    "evaluate /nonexistent": 0.4,
    "compress demo-llama --method a3 --samples 16 --out OUT": 3.0,
}
ON_TERMINAL = {"compress demo-llama --method a3 --samples 16 --out OUT": 3.0}


def start(only: list[str]) -> None:
    """Seconds to the first line of every command: its answer, its error, or its progress."""
    if only:
        return
    with empty_cache():
        once = first_line("methods")
        rows = [row(words, goal, "", first_line) for words, goal in COMMANDS.items()]
        rows += [
            row(words, goal, ", on a terminal", on_terminal) for words, goal in ON_TERMINAL.items()
        ]
    words = (
        f"{machine()}; medians of {ROUNDS} new processes. What methods and policies say of "
        f"themselves is kept by the first command that asks for it, which takes {once:.2f} s. On a "
        "terminal, `compress` says before its imports that it loads; elsewhere it begins with what "
        "it counts, after them."
    )
    header = ["`python -m lrcore`", "seconds to the first line", "should be at most", ""]
    write_section("start", f"{words}\n\n{table(header, rows)}")


def row(words: str, goal: float, where: str, measure: Callable[[str], float]) -> list[str]:
    took = statistics.median(measure(words) for _ in range(ROUNDS))
    note(f"start {words}{where}: {took:.2f} s")
    return [f"`{words}`{where}", f"{took:.2f}", f"{goal}", "" if took <= goal else "missed"]


def first_line(words: str) -> float:
    """Seconds from the start of a process to the first line that it prints into a pipe."""
    began = time.perf_counter()
    with running(words, subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        took = time.perf_counter() - began
        process.stdout.read()
    return took


def on_terminal(words: str) -> float:
    """Seconds from the start of a process to what it first says on a terminal."""
    ours, its = pty.openpty()
    began = time.perf_counter()
    with running(words, its):
        os.close(its)
        os.read(ours, 1)
        took = time.perf_counter() - began
        with suppress(OSError):  # what Linux raises once the process has closed its side
            while os.read(ours, 4096):
                pass
    os.close(ours)
    return took


@contextmanager
def running(words: str, said: int) -> Iterator[subprocess.Popen]:
    """`python -m lrcore` in a folder of its own. said: where its output goes."""
    with tempfile.TemporaryDirectory() as folder:
        command = words.replace("OUT", f"{folder}/out").split()
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            [sys.executable, "-m", "lrcore", *command],
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
        ) as process:
            yield process
