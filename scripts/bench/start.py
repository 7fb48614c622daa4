"""How long the command line takes until it says something, on a machine that does nothing else."""

import os
import statistics
import subprocess
import sys
import tempfile
import time

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


def start(only: list[str]) -> None:
    """Seconds to the first line of every command: its answer, its error, or its progress."""
    if only:
        return
    rows = []
    with empty_cache():
        once = first_line("methods")
        for words, goal in COMMANDS.items():
            took = statistics.median(first_line(words) for _ in range(ROUNDS))
            note(f"start {words}: {took:.2f} s")
            rows.append([f"`{words}`", f"{took:.2f}", f"{goal}", "" if took <= goal else "missed"])
    words = (
        f"{machine()}; medians of {ROUNDS} new processes. What methods and policies say of "
        f"themselves is kept by the first command that asks for it, which takes {once:.2f} s. On a "
        "terminal, `compress` says before its imports that it loads."
    )
    header = ["`python -m lrcore`", "seconds to the first line", "should be at most", ""]
    write_section("start", f"{words}\n\n{table(header, rows)}")


def first_line(words: str) -> float:
    """Seconds from the start of a process to the first line that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        command = words.replace("OUT", f"{folder}/out").split()
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        began = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-m", "lrcore", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            took = time.perf_counter() - began
            process.stdout.read()
    return took
