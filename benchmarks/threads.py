"""Wait policies of threads and threads per decomposition, on an idle machine and with another
process on one core.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import lrcore

from .machine import ROOT, machine
from .report import log, table, write_section
from .timing import median_seconds

POLICIES = {
    "up to 0.2 ms (default of lrcore)": {},
    "not at all": {"OMP_WAIT_POLICY": "PASSIVE"},
    "default of torch": {"OMP_WAIT_POLICY": "", "GOMP_SPINCOUNT": "300000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
HEADER = [
    "threads spin",
    "second process",
    "decode",
    "prefill",
    "`eigh`, all threads",
    "`eigh`, one thread",
]
WIDTH, TOKENS, TIMES = 576, 512, 5


def threads(_models: list[str]) -> None:
    """Measure the milliseconds by policy, each in a separate process."""
    rows = []
    for busy in (False, True):
        for name, environment in POLICIES.items():
            with busy_process() if busy else nullcontext():
                rows.append([name, "one core" if busy else "none", *measure(environment)])
            log(str(rows[-1]))
    caption = (
        f"Milliseconds, medians of {TIMES}: the products of a decoder layer of width {WIDTH} for "
        f"one token (decode) and for {TOKENS} (prefill), float32; `torch.linalg.eigh` of {WIDTH} x "
        f"{WIDTH} float64, with all threads and with the single thread of `lrcore`. {machine()}."
    )
    write_section("threads", f"{caption}\n\n{table(HEADER, rows)}")


@contextmanager
def busy_process() -> Iterator[None]:
    """Run a second process that keeps a core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(environment: dict[str, str]) -> list[str]:
    """Run this module in a process with the environment and return the milliseconds of its row."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMP", "GOMP"))
    }
    command = [sys.executable, "-m", "benchmarks.threads"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=inherited | environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def main() -> None:
    """Print the milliseconds of a row."""
    assert lrcore.__name__  # imported before torch to set the wait policy
    import torch

    from lrcore.layers.linalg import eigh_descending

    torch.manual_seed(0)
    square = torch.randn(WIDTH, WIDTH, dtype=torch.float64)
    gram = square @ square.mT
    weights = [torch.randn(WIDTH, size) for size in (WIDTH, WIDTH, WIDTH, WIDTH, 1536, 1536, 1536)]

    def products(hidden: torch.Tensor) -> None:
        for weight in weights:
            torch.nn.functional.silu(hidden @ weight)

    token, tokens = torch.randn(1, WIDTH), torch.randn(TOKENS, WIDTH)
    for run in (
        lambda: products(token),
        lambda: products(tokens),
        lambda: torch.linalg.eigh(gram),
        lambda: eigh_descending(gram),
    ):
        run()
        print(f"{median_seconds(run, TIMES) * 1e3:.2f}")


if __name__ == "__main__":
    main()
