"""Time until the first output of a command. Needs an idle machine."""

import os
import pty
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from .machine import ROOT, machine
from .report import log, table, write_section
from .timing import empty_cache

ROUNDS = 5
# Command and its goal in seconds
COMMANDS = {
    "--help": 0.4,
    "methods": 0.8,
    "compress demo-llama --method a4 --out OUT": 0.4,
    "evaluate /nonexistent": 0.4,
    "compress demo-llama --method a3 --samples 16 --out OUT": 3.0,
}
ON_TERMINAL = {"compress demo-llama --method a3 --samples 16 --out OUT": 3.0}


def start(models: list[str]) -> None:
    """Measure the seconds to the first line of each command: its result, error or progress."""
    if models:
        return
    with empty_cache():
        once = first_line("methods")
        rows = [row(command, goal, "", first_line) for command, goal in COMMANDS.items()]
        rows += [
            row(command, goal, ", on a terminal", on_terminal)
            for command, goal in ON_TERMINAL.items()
        ]
    caption = (
        f"{machine()}; medians of {ROUNDS} new processes. The first command that needs the "
        f"descriptions of methods and policies caches them, which takes {once:.2f} s. On a "
        "terminal `compress` prints a line before its imports; otherwise its first output is its "
        "progress after the imports."
    )
    header = ["`python -m lrcore`", "seconds to the first line", "goal", ""]
    write_section("start", f"{caption}\n\n{table(header, rows)}")


def row(command: str, goal: float, suffix: str, measure: Callable[[str], float]) -> list[str]:
    """Return the row of a command: the median over ROUNDS processes, and the goal in seconds."""
    seconds = statistics.median(measure(command) for _ in range(ROUNDS))
    log(f"start {command}{suffix}: {seconds:.2f} s")
    return [
        f"`{command}`{suffix}",
        f"{seconds:.2f}",
        f"{goal}",
        "" if seconds <= goal else "missed",
    ]


def first_line(command: str) -> float:
    """Return the seconds from the start of a process to its first line in a pipe."""
    start_time = time.perf_counter()
    with running(command, subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seconds = time.perf_counter() - start_time
        process.stdout.read()
    return seconds


def on_terminal(command: str) -> float:
    """Return the seconds from the start of a process to its first output on a terminal."""
    reader, terminal = pty.openpty()
    start_time = time.perf_counter()
    with running(command, terminal):
        os.close(terminal)
        os.read(reader, 1)
        seconds = time.perf_counter() - start_time
        with suppress(OSError):  # raised by Linux after the process has closed its side
            while os.read(reader, 4096):
                pass
    os.close(reader)
    return seconds


@contextmanager
def running(command: str, output: int) -> Iterator[subprocess.Popen]:
    """Run `python -m lrcore` in a temporary folder. output: file descriptor of its output."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = command.replace("OUT", f"{folder}/out").split()
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            [sys.executable, "-m", "lrcore", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
        ) as process:
            yield process
