"""Program that serves the page like `python app.py` and ends with SIGKILL at its n-th event.

python killed_page.py --port N: $LRCORE_SOAK_KIND and $LRCORE_SOAK_AT are KIND and N of killed.py;
files are those below $LRCORE_SOAK_HERE, calls those of the thread that runs the jobs. SIGTERM ends
the server, which then prints both numbers of events. The server and its subprocesses have a
separate process group.
"""

import atexit
import os
import runpy
import signal
import sys
import threading
from pathlib import Path

from killed import Killer

APP = Path(__file__).parents[2] / "app.py"
WORKER = "worker"  # the thread that runs the jobs


def serve(kind: str, at: int, folder: str) -> None:
    files, calls = (
        Killer(at if kind == event_kind else 0, folder) for event_kind in ("files", "calls")
    )

    def begin(*event) -> None:
        """Start counting calls in the worker, at the first event of a thread."""
        sys.setprofile(calls.count if threading.current_thread().name == WORKER else None)

    os.setpgrp()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C
    sys.addaudithook(files.audit)
    if kind == "calls" or not at:
        threading.setprofile(begin)
    sys.path.insert(0, str(APP.parent))
    # the page ends its process, so later code would not run
    atexit.register(lambda: print(f"{files.seen} files, {calls.seen} calls", file=sys.stderr))
    runpy.run_path(str(APP), run_name="__main__")


if __name__ == "__main__":
    serve(
        os.environ["LRCORE_SOAK_KIND"],
        int(os.environ["LRCORE_SOAK_AT"]),
        os.environ["LRCORE_SOAK_HERE"],
    )
