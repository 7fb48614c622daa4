"""How threads that compute wait for each other, and how many of them a decomposition takes: on a
machine that does nothing else, and with another process on one core.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import lrcore

from .page import ROOT, machine, median_seconds, note, table, write_section

POLICIES = {
    "up to 0.2 ms (the default here)": {},
    "not at all": {"OMP_WAIT_POLICY": "PASSIVE"},
    "as long as torch alone": {"OMP_WAIT_POLICY": "", "GOMP_SPINCOUNT": "300000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
HEADER = ["threads spin", "other process", "decode", "prefill", "`eigh`, own threads", "`eigh`"]
WIDTH, TOKENS, TIMES = 576, 512, 5


def threads(_models: list[str]) -> None:
    """Milliseconds by policy, each in a process of its own."""
    rows = []
    for busy in (False, True):
        for name, environment in POLICIES.items():
            with process() if busy else nullcontext():
                rows.append([name, "one core" if busy else "none", *measured(environment)])
            note(str(rows[-1]))
    words = (
        f"Milliseconds, medians of {TIMES}: the products of a decoder layer of width {WIDTH} for "
        f"one token (decode) and for {TOKENS} (prefill), float32; `torch.linalg.eigh` of {WIDTH} x "
        f"{WIDTH} float64, with all threads and with the one that `lrcore` takes. {machine()}."
    )
    write_section("threads", f"{words}\n\n{table(HEADER, rows)}")


@contextmanager
def process() -> Iterator[None]:
    """Another process that keeps a core busy."""
    own = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        own.kill()
        own.wait()


def measured(environment: dict[str, str]) -> list[str]:
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMP", "GOMP"))
    }
    command = [sys.executable, "-m", "bench.threads"]
    done = subprocess.run(
        command,
        cwd=ROOT / "scripts",
        env=own | environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def main() -> None:
    """Print the milliseconds of one row."""
    assert lrcore.__name__  # before torch: it says how threads wait
    import torch

    from lrcore.linalg import eigh_descending

    torch.manual_seed(0)
    square = torch.randn(WIDTH, WIDTH, dtype=torch.float64)
    gram = square @ square.mT
    weights = [torch.randn(WIDTH, size) for size in (WIDTH, WIDTH, WIDTH, WIDTH, 1536, 1536, 1536)]

    def products(hidden: torch.Tensor) -> None:
        for weight in weights:
            torch.nn.functional.silu(hidden @ weight)

    one, many = torch.randn(1, WIDTH), torch.randn(TOKENS, WIDTH)
    for run in (
        lambda: products(one),
        lambda: products(many),
        lambda: torch.linalg.eigh(gram),
        lambda: eigh_descending(gram),
    ):
        run()
        print(f"{median_seconds(run, TIMES) * 1e3:.2f}")


if __name__ == "__main__":
    main()
