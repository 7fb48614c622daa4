"""How much memory this process may still take: of the machine, of its control groups, of its own
limit.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .errors import Shortage

OWN_GROUPS, MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class _Files:
    """The files of a control group, by the version of the interface, below `folder`.

    reclaimable: the line of memory.stat with the pages of files that nobody has read lately: the
    system takes them back before it ends a process.
    """

    folder: str
    limit: str
    taken: str
    reclaimable: str


_V1 = _Files("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("", "memory.max", "memory.current", "inactive_file")


def free_memory() -> int | None:
    """Bytes that this process may still take: of the machine, of its groups, of its own limit.

    None where nobody says, or where there is not even memory to read it.
    """
    left = memory_left()
    return None if left is None else left[0]


def memory_left() -> tuple[int, int] | None:
    """Bytes that this process may still take, and of how many: of the limit that is nearest. None
    as for `free_memory`.
    """
    with suppress(MemoryError):
        return min(((max(left, 0), most) for left, most in _limits()), default=None)
    return None


def raise_unless_free(need: int, what: str, remedy: str, free: int | None) -> None:
    """Raise Shortage where so many bytes are more than are free; None: nobody says how many are.

    what: takes them, such as "The weights". remedy: a sentence. Beyond a limit of the machine or of
    a control group no allocation fails: the system ends the process, which could say nothing then.
    """
    if free is not None and need > free:
        raise Shortage(
            f"{what} take {megabytes(need)} of memory; {megabytes(free)} are free. {remedy}"
        )


def megabytes(count: float) -> str:
    """Bytes as text, such as "1.5 MB"."""
    return f"{count / 1e6:,.1f} MB"


def group_limits(own: Path = OWN_GROUPS, mount: Path = MOUNT) -> Iterator[tuple[int, int]]:
    """Bytes that are free, and the limit, of every control group with one that holds this process.

    own: says which those are. A container may see its own group as the outermost one, under
    `mount`, and be told a name of the host's that is not there.
    """
    with suppress(OSError, ValueError):  # no groups here, or a line of another form
        for line in own.read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            files = _V1 if controllers else _V2
            root = mount / files.folder
            inner = root / name.lstrip("/")
            for folder in (inner, *inner.parents):
                if folder.is_relative_to(root):
                    yield from _of_group(folder, files)


def _of_group(folder: Path, files: _Files) -> Iterator[tuple[int, int]]:
    with suppress(OSError, ValueError):  # no limit is the word "max"
        most = int((folder / files.limit).read_text(encoding="ascii"))
        taken = int((folder / files.taken).read_text(encoding="ascii"))
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
        parts = dict(line.split(maxsplit=1) for line in lines if line)
        yield most - taken + int(parts.get(files.reclaimable, 0)), most


def _limits() -> Iterator[tuple[int, int]]:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free, total = (
            1024 * int(next(line for line in lines if line.startswith(name)).split()[1])
            for name in ("MemAvailable", "MemTotal")
        )
        yield free, total
    yield from group_limits()
    with suppress(ImportError, OSError, ValueError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most != resource.RLIM_INFINITY:
            pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
            yield most - int(pages) * resource.getpagesize(), most
