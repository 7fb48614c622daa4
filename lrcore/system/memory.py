"""Memory available to this process: of the machine, of control groups, within the limit."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .errors import ResourceError

OWN_GROUPS, MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class _Files:
    """File names of a control group, by version of the interface, below `folder`.

    reclaimable: line of memory.stat with inactive pages of files, which the system reclaims before
    it kills a process.
    """

    folder: str
    limit: str
    usage: str
    reclaimable: str


_V1 = _Files("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("", "memory.max", "memory.current", "inactive_file")


def free_memory() -> int | None:
    """Return the bytes available to this process, the minimum over machine, groups and limit.

    None if unknown, or if there is not enough memory to find out.
    """
    nearest = memory_limit()
    return None if nearest is None else nearest[0]


def memory_limit() -> tuple[int, int] | None:
    """Return (available bytes, limit) of the limit with the fewest available bytes.

    None like `free_memory`.
    """
    with suppress(MemoryError):
        return min(((max(free, 0), limit) for free, limit in _limits()), default=None)
    return None


def raise_unless_free(need: int, subject: str, remedy: str, free: int | None) -> None:
    """Raise ResourceError if `need` bytes are more than `free` ones; None stands for unknown.

    subject: of the message, in the plural, such as "The weights". remedy: last sentence of the
    message. Call it before an allocation: the system kills a process beyond the limit without an
    exception.
    """
    if free is not None and need > free:
        raise ResourceError(
            f"{subject} take {megabytes(need)} of memory; {megabytes(free)} are free. {remedy}"
        )


def megabytes(count: float) -> str:
    """Return bytes as text, such as "1.5 MB" or "14.50 GB"."""
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def group_limits(groups: Path = OWN_GROUPS, mount: Path = MOUNT) -> Iterator[tuple[int, int]]:
    """Yield (available bytes, limit) of the control groups of this process that have a limit.

    groups: file with the names of the groups. In a container, the group can be the root of
    `mount`, while `groups` has a name of the host that does not exist in the container.
    """
    with suppress(OSError, ValueError):  # no control groups, or an unknown format
        for line in groups.read_text(encoding="utf-8").splitlines():
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
    with suppress(OSError, ValueError):  # "max" stands for no limit
        limit = int((folder / files.limit).read_text(encoding="ascii"))
        usage = int((folder / files.usage).read_text(encoding="ascii"))
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
        parts = dict(line.split(maxsplit=1) for line in lines if line)
        yield limit - usage + int(parts.get(files.reclaimable, 0)), limit


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

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
            yield limit - int(pages) * resource.getpagesize(), limit
