"""Program that runs a command of lrcore with little memory.

python limited.py BYTES ARGUMENT...: the address space may grow by this number of bytes. The last
line on stderr has the largest growth.
"""

import resource
import sys
from pathlib import Path


def size(name: str) -> int:
    """Return the bytes of address space: current (VmSize) or peak (VmPeak)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def run(extra_bytes: int, arguments: list[str]) -> int:
    from lrcore.cli import main

    before = size("VmSize")
    if extra_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (before + extra_bytes, resource.RLIM_INFINITY))
    code = main(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(size("VmPeak") - before, file=sys.stderr)
    return code


if __name__ == "__main__":
    raise SystemExit(run(int(sys.argv[1]), sys.argv[2:]))
