"""Ray as the engine of a pool. Heavy imports wait: a worker imports this file first, and sets its
environment before it imports more.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import cache_folder
from ..units import worked_by

TRIES = 3  # how often a unit whose worker died is begun again
CARRIED = ("HF_HUB_OFFLINE", "LRCORE_CACHE_LIMIT")  # of the environment, where it is set


@contextmanager
def on_cluster(address: str = "auto") -> Iterator[None]:
    """Inside, what this thread calibrates, factorises, probes, evaluates and sweeps is done by the
    workers of a Ray cluster; moments differ by rounding, all else is the same.

    address: "auto" for the cluster that this machine belongs to, host:port, or ray://host:port. All
    machines need this package, and must see the cache (LRCORE_CACHE), models and texts under the
    same paths. There is a worker for every GPU, or without any for so many CPU cores as torch has
    threads here. Raises InputError where Ray is not installed, or no cluster answers.
    """
    from .pool import Pool

    ray = _ray()
    connected = ray.is_initialized()
    if not connected:
        _connect(ray, address)
    try:
        engine = RayEngine(ray)
        try:
            with worked_by(Pool(engine)):
                yield
        finally:
            engine.stop()
    finally:
        if not connected:
            ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise InputError(
            f"Ray cannot be imported ({error}). Run `pip install 'ray[default]'`, or leave "
            "--cluster out."
        ) from error
    return ray


def _connect(ray: Any, address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray has many kinds, and no base for those of connecting
        raise InputError(
            f"No Ray cluster answers at '{address}'. Start one with `ray start --head` here, and "
            "`ray start --address HOST:6379` on the other machines."
        ) from error


class RayEngine:
    """See `pool.Engine`. Workers are actors, started with their first unit."""

    def __init__(self, ray: Any) -> None:
        import torch

        self._ray = ray
        self._actors: dict[int, Any] = {}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self._kind = "GPU" if any(node.get("GPU", 0) >= 1 for node in nodes) else "CPU"
        most = max((int(node.get("CPU", 0)) for node in nodes), default=0)
        self._threads = max(1, min(torch.get_num_threads(), most))
        each = 1 if self._kind == "GPU" else self._threads
        fit = sum(int(node.get(self._kind, 0)) // each for node in nodes)
        free = int(ray.available_resources().get(self._kind, 0)) // each
        self.count = max(1, min(fit, free))

    def share(self, payload: bytes) -> Any:
        """See `pool.Engine`; in Ray's object store."""
        return self._ray.put(payload)

    def send(self, worker: int, handle: Any, unit: bytes) -> Any:
        """See `pool.Engine`."""
        if worker not in self._actors:
            self._actors[worker] = self._start()
        return self._actors[worker].run.remote(handle, unit)

    def _start(self) -> Any:
        environment = {name: os.environ[name] for name in CARRIED if name in os.environ}
        environment["LRCORE_CACHE"] = str(cache_folder().absolute())
        settings = {
            "num_cpus": self._threads if self._kind == "CPU" else 1,
            "num_gpus": int(self._kind == "GPU"),
            "max_restarts": -1,
            "max_task_retries": TRIES,
        }
        actor = self._ray.remote(**settings)(RayWorker)
        return actor.remote(environment, str(Path.cwd()), self._threads)

    def answered(self, futures: Sequence[Any], seconds: float) -> Any | None:
        """See `pool.Engine`."""
        ready, _ = self._ray.wait(list(futures), num_returns=1, timeout=seconds)
        return ready[0] if ready else None

    def take(self, future: Any) -> bytes:
        """See `pool.Engine`. Raises InputError as it says."""
        try:
            answer: bytes = self._ray.get(future)
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1].strip().rstrip(".")
            raise InputError(
                f"A worker of the cluster died, and so did those started in its place ({reason}). "
                "Its memory may not suffice, or this package is not installed on its machine."
            ) from error
        return answer

    def stop(self) -> None:
        """See `pool.Engine`."""
        for actor in self._actors.values():
            self._ray.kill(actor, no_restart=True)
        self._actors = {}


class RayWorker:
    """A worker as an actor of Ray's: a process of its own on some machine."""

    def __init__(self, environment: dict[str, str], folder: str, threads: int) -> None:
        os.environ.update(environment)
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        if Path(folder).is_dir():
            os.chdir(folder)  # names of files in a recipe may be relative
        import torch

        from .pool import Worker

        torch.set_num_threads(threads)
        self._worker = Worker()

    def run(self, payload: bytes, unit: bytes) -> bytes:
        """See `pool.Worker`."""
        return self._worker.run(payload, unit)
