"""Program that runs a command of lrcore and sends it a signal at its n-th event.

python killed.py SIGNAL KIND N ARGUMENT...: SIGNAL is a number. KIND "files" counts operations on
files below the working folder before they happen (open, lock, rename, delete), "calls" counts calls
and returns of functions. With N = 0, no signal is sent. The last line on stderr has both numbers of
events.
"""

import os
import signal
import sys

FILES = ("open", "fcntl.flock", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.utime")


class Killer:
    """Counter of events that sends this process a signal at one of them. folder: counts operations
    on its files; by default the working folder.
    """

    def __init__(self, at: int, folder: str = "", number: int = signal.SIGKILL) -> None:
        self.at, self.seen, self.folder, self.number = at, 0, folder or os.getcwd(), number

    def count(self, *event) -> None:
        self.seen += 1
        if self.seen == self.at:
            os.kill(os.getpid(), self.number)

    def audit(self, event: str, arguments: tuple) -> None:
        if event in FILES:
            path = arguments[0] if arguments else ""
            path = path.decode() if isinstance(path, bytes) else path
            if event == "fcntl.flock" or (isinstance(path, str | os.PathLike) and self._ours(path)):
                self.count()

    def _ours(self, path: str | os.PathLike) -> bool:
        return os.path.abspath(path).startswith(self.folder)


def run(number: int, kind: str, at: int, arguments: list[str]) -> int:
    from lrcore.cli import main

    # background processes of a shell ignore SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler)
    files, calls = (
        Killer(at if kind == event_kind else 0, number=number) for event_kind in ("files", "calls")
    )
    sys.addaudithook(files.audit)
    if kind == "calls" or not at:
        sys.setprofile(calls.count)
    code = main(arguments)
    sys.setprofile(None)
    print(files.seen, calls.seen, file=sys.stderr)
    return code


if __name__ == "__main__":
    raise SystemExit(run(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
