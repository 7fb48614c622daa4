"""Fresh Python processes that need not import everything again.

Importing torch, transformers and this project takes seconds, and many tests need a process of their
own. A `Fresh` is a process that imports modules once and does nothing else; every `start` is a fork
of it, which has run none of the tests' code, with an environment, folder and streams of its own.
What the modules read from the environment when they are imported is that of the `Fresh`, but for
what huggingface_hub does: where the hub is, and whether it may be asked.
"""

import atexit
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

POLL = 0.01  # seconds
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Process:
    """A started process; what it printed lies in the files `out` and `err`."""

    pid: int
    status: Path
    out: Path
    err: Path

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        return int(self.status.read_text()) if self.status.exists() else None

    def wait(self, timeout: float) -> int:
        """The exit status; a process that takes longer is killed."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                self.send_signal(signal.SIGKILL)
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(POLL)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Fresh:
    """A process with `modules` imported, and the processes forked from it."""

    def __init__(
        self, modules: Sequence[str], environment: Mapping[str, str], path: Sequence[str] = ()
    ) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="fresh-")
        self.numbers = count()
        self.process = subprocess.Popen(
            [sys.executable, __file__, json.dumps({"modules": modules, "path": path})],
            cwd=self.folder.name,
            env={k: v for k, v in environment.items() if k != "PYTHONPATH"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path | str
    ) -> Process:
        """Start what `python *arguments` would run: "-c" and code, "-m" and a module, or a file."""
        workspace = Path(self.folder.name) / str(next(self.numbers))
        workspace.mkdir()
        job = {
            "arguments": [str(word) for word in arguments],
            "environment": dict(environment),
            "cwd": str(cwd),
            "workspace": str(workspace),
        }
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the process that others are forked from has ended"
        return Process(int(answer), workspace / "status", workspace / "out", workspace / "err")

    def run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path | str,
        timeout: float = 600,
    ) -> subprocess.CompletedProcess:
        """`start`, and wait: as `subprocess.run` with captured text."""
        process = self.start(arguments, environment, cwd)
        code = process.wait(timeout)
        return subprocess.CompletedProcess(
            arguments, code, process.out.read_text(), process.err.read_text()
        )

    def close(self) -> None:
        """End it, and with it the processes that still run."""
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()
        self.folder.cleanup()


def _closed_at_exit(fresh: Fresh) -> Fresh:
    atexit.register(fresh.close)
    return fresh


@cache
def outside() -> Fresh:
    """Where this project is not installed: torch and transformers, without a hub."""
    hub_settings = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    modules = ("torch", "transformers.models.auto.modeling_auto", "transformers.modeling_utils")
    return _closed_at_exit(
        Fresh((*modules, "transformers.generation.utils"), os.environ | hub_settings)
    )


@cache
def project() -> Fresh:
    """This project, as the environment of the tests has it."""
    return _closed_at_exit(Fresh(("lrcore", "lrcore.cli.commands"), os.environ, [str(ROOT)]))


@cache
def page() -> Fresh:
    """This project's page, on one thread: the browser needs a core too."""
    return _closed_at_exit(
        Fresh(("lrcore", "workbench"), os.environ | {"OMP_NUM_THREADS": "1"}, [str(ROOT)])
    )


def serve() -> None:
    """Import, then fork a process per line of stdin, and note the status of those that end."""
    import gc
    import importlib

    requested = json.loads(sys.argv[1])
    sys.path[0:1] = [*requested["path"]]
    for name in requested["modules"]:
        module = importlib.import_module(name)
        if name == "lrcore":  # whose public names are imported when they are read
            for public in module.__all__:
                getattr(module, public)
    gc.freeze()  # what was imported stays: a collection need not look at it, nor copy its pages
    answers, running, lines = os.fdopen(os.dup(1), "w"), {}, b""
    os.dup2(2, 1)
    while True:
        ready, _, _ = select.select([0], [], [], POLL)
        if ready:
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *complete_lines, lines = (lines + chunk).split(b"\n")
            for line in complete_lines:
                job = json.loads(line)
                if not (pid := os.fork()):
                    child(job)
                running[pid] = Path(job["workspace"])
                print(pid, file=answers, flush=True)
        while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            workspace = running.pop(ended[0])
            (workspace / "ending").write_text(str(os.waitstatus_to_exitcode(ended[1])))
            (workspace / "ending").rename(workspace / "status")


def child(job: dict) -> None:
    """Become the process that a job describes; does not return."""
    import threading
    import traceback

    code = 1
    try:
        become(job)
        main(job["arguments"])
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def become(job: dict) -> None:
    """Streams, folder and environment as the job has them."""
    if sys.platform == "linux":  # ended with the process that it is forked from
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    workspace = Path(job["workspace"])
    for number, path, flags in (
        (0, Path(os.devnull), os.O_RDONLY),
        (1, workspace / "out", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        (2, workspace / "err", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["environment"])
    read_hub_settings()


def read_hub_settings() -> None:
    """HF_* as this environment has them, where they are kept and where they were copied to."""
    import importlib

    if (settings := sys.modules.get("huggingface_hub.constants")) is None:
        return
    before = dict(vars(settings))
    reloaded = vars(importlib.reload(settings))
    changed = {
        name: reloaded[name]
        for name in reloaded
        if name.isupper() and reloaded[name] != before.get(name)
    }
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("huggingface_hub", "transformers"):
            for setting in changed.keys() & vars(module).keys():
                setattr(module, setting, changed[setting])
    if changed.get("HF_HUB_DISABLE_PROGRESS_BARS"):  # what transformers made of it when imported
        sys.modules["transformers.utils.logging"]._tqdm_active = False


def main(arguments: Sequence[str]) -> None:
    """Run `python *arguments` in this process."""
    import runpy
    import types

    kind, *command = arguments
    if kind == "-m":
        sys.path.insert(0, "")
        sys.argv = command
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *command[1:]]
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(command[0], "<string>", "exec"), module.__dict__)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path(kind).resolve().parent))
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    serve()
