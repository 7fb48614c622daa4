"""New Python processes without the time of imports.

Many tests need a separate process, and importing torch, transformers and this project takes
seconds. A `Fresh` is a process that imports modules once; each `start` is a fork of it, without any
code of the tests, with a given environment, folder and streams. Modules have read their environment
variables in the `Fresh`, except the settings of huggingface_hub, which are read again.
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
    """Started process, with its output in the files `out` and `err`."""

    pid: int
    status: Path
    out: Path
    err: Path

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return int(self.status.read_text()) if self.status.exists() else None

    def wait(self, timeout: float) -> int:
        """Wait for the exit status; kill a process that takes longer."""
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
    """A process with imported `modules`, and the processes forked from it."""

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
        """Start the equivalent of `python *arguments`: "-c" and code, "-m" and a module, or
        a file.
        """
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
        assert answer, "the Fresh process has ended"
        return Process(int(answer), workspace / "status", workspace / "out", workspace / "err")

    def run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path | str,
        timeout: float = 600,
    ) -> subprocess.CompletedProcess:
        """Call `start` and wait, as `subprocess.run` with captured text."""
        process = self.start(arguments, environment, cwd)
        code = process.wait(timeout)
        return subprocess.CompletedProcess(
            arguments, code, process.out.read_text(), process.err.read_text()
        )

    def close(self) -> None:
        """End the process and its running forks."""
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()
        self.folder.cleanup()


def _closed_at_exit(fresh: Fresh) -> Fresh:
    atexit.register(fresh.close)
    return fresh


@cache
def outside() -> Fresh:
    """Return a process without this project: torch and transformers, without a hub."""
    hub_settings = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    modules = ("torch", "transformers.models.auto.modeling_auto", "transformers.modeling_utils")
    return _closed_at_exit(
        Fresh((*modules, "transformers.generation.utils"), os.environ | hub_settings)
    )


@cache
def project() -> Fresh:
    """Return a process with this project and the environment of the tests."""
    return _closed_at_exit(Fresh(("lrcore", "lrcore.cli.commands"), os.environ, [str(ROOT)]))


@cache
def page() -> Fresh:
    """Return a process with the page, in one thread, because the browser needs a core too."""
    return _closed_at_exit(
        Fresh(("lrcore", "workbench"), os.environ | {"OMP_NUM_THREADS": "1"}, [str(ROOT)])
    )


def serve() -> None:
    """Import the modules, fork a process per line of stdin, and record the exit statuses."""
    import gc
    import importlib

    requested = json.loads(sys.argv[1])
    sys.path[0:1] = [*requested["path"]]
    for name in requested["modules"]:
        module = importlib.import_module(name)
        if name == "lrcore":  # public names are imported lazily
            for public in module.__all__:
                getattr(module, public)
    gc.freeze()  # collections need not visit imported objects or copy their pages
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
    """Become the process of a job; does not return."""
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
    """Set streams, folder and environment of a job."""
    if sys.platform == "linux":  # ends with the parent process
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
    """Read the HF_* variables again, in their module and all modules that imported them."""
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
    if changed.get("HF_HUB_DISABLE_PROGRESS_BARS"):  # a setting that transformers derived at import
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
