"""Ray as the engine of a pool.

Heavy imports are inside functions, because a worker imports this module before it sets its
environment.
"""

import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...system.errors import InputError
from ...system.files import cache_folder
from ...system.units import worked_by

TRIES = 3  # restarts of a unit whose worker died
CARRIED = ("HF_HUB_OFFLINE", "LRCORE_CACHE_LIMIT")  # environment variables passed to the workers


@contextmanager
def on_cluster(address: str = "auto") -> Iterator[None]:
    """Run the work of this thread on the workers of a Ray cluster within the context.

    This covers calibration, factorization, probes, evaluation and sweeps. Moments differ by
    rounding; all further results are equal. address: "auto" for the cluster that this machine
    belongs to, host:port, or ray://host:port. All machines need this package, and must have the
    cache (LRCORE_CACHE), models and texts under the same paths. There is a worker per GPU or, in a
    cluster without GPUs, per so many CPU cores as torch has threads in this process. Raises
    InputError if Ray is not installed or no cluster answers.
    """
    ray = _ray("omit --cluster")
    connected = ray.is_initialized()
    if not connected:
        _connect(ray, address)
    try:
        with _on_workers(ray):
            yield
    finally:
        if not connected:
            ray.shutdown()


@contextmanager
def on_local_ray(gpus: Sequence[str]) -> Iterator[None]:
    """Run the work of this thread on a worker per GPU of this machine within the context.

    Starts Ray on this machine, and stops it at the end. gpus: entries of CUDA_VISIBLE_DEVICES; each
    worker sees one of them. Raises InputError if Ray is not installed or does not start.
    """
    if "ray" not in sys.modules:  # Ray reads these variables when it is imported
        os.environ.update(_private())
    ray = _ray("use --gpus 1")
    if ray.is_initialized():
        raise InputError(
            "This process is connected to a Ray cluster. Use its workers (`on_cluster`), or call "
            "`ray.shutdown()` first."
        )
    _start(ray, gpus)
    try:
        with _on_workers(ray):
            yield
    finally:
        ray.shutdown()


@contextmanager
def _on_workers(ray: Any) -> Iterator[None]:
    from .pool import Pool

    engine = RayEngine(ray)
    try:
        with worked_by(Pool(engine)):
            yield
    finally:
        engine.stop()


def _ray(remedy: str) -> Any:
    try:
        import ray
    except ImportError as error:
        raise InputError(
            f"Ray cannot be imported ({error}). Run `pip install 'ray[default]'` (the extra "
            f"`cluster` of this package), or {remedy}."
        ) from error
    return ray


def _connect(ray: Any, address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray's connection errors have no common base class
        raise InputError(
            f"No Ray cluster answers at '{address}'. Start a cluster with `ray start --head` on "
            "this machine and `ray start --address HOST:6379` on all further machines."
        ) from error


def _private() -> dict[str, str]:
    """Return variables that make a Ray started by this process refuse other users.

    Its ports are open to the network. A Ray cluster of the user has a mode already.
    """
    if "RAY_AUTH_MODE" in os.environ:
        return {}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _start(ray: Any, gpus: Sequence[str]) -> None:
    """Start Ray on this machine with the given GPUs, without reports of usage to its authors."""
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "RAY_USAGE_STATS_ENABLED": "0"}
    settings = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    before = {name: os.environ.get(name) for name in visible}
    os.environ.update(visible)
    try:
        ray.init(address="local", num_gpus=len(gpus), **settings)
    except Exception as error:  # Ray's errors have no common base class
        ray.shutdown()
        raise InputError(
            f"Ray does not start on this machine ({_last_line(error)}). Use --gpus 1."
        ) from error
    finally:
        os.environ.update({name: value for name, value in before.items() if value is not None})
        for name in [name for name, value in before.items() if value is None]:
            del os.environ[name]


def _last_line(error: Exception) -> str:
    """Return the last line of the message of an error, which names the cause in those of Ray."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip().rstrip(".")


class RayEngine:
    """The implementation of `pool.Engine` by Ray. Workers are actors, started with their first
    unit.
    """

    def __init__(self, ray: Any) -> None:
        import torch

        self._ray = ray
        self._actors: dict[int, Any] = {}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self._kind = "GPU" if any(node.get("GPU", 0) >= 1 for node in nodes) else "CPU"
        max_cores = max((_cores_of_worker(node, self._kind) for node in nodes), default=0)
        self._threads = max(1, min(torch.get_num_threads(), max_cores))
        per_worker = 1 if self._kind == "GPU" else self._threads
        fit = sum(int(node.get(self._kind, 0)) // per_worker for node in nodes)
        free = int(ray.available_resources().get(self._kind, 0)) // per_worker
        self.count = max(1, min(fit, free))

    def share(self, payload: bytes) -> Any:
        """Implement `pool.Engine` with the object store of Ray."""
        return self._ray.put(payload)

    def send(self, worker: int, handle: Any, unit: bytes) -> Any:
        """Implement `pool.Engine`."""
        if worker not in self._actors:
            self._actors[worker] = self._start()
        return self._actors[worker].run.remote(handle, unit)

    def _start(self) -> Any:
        environment = {name: os.environ[name] for name in CARRIED if name in os.environ}
        environment["LRCORE_CACHE"] = str(cache_folder().absolute())
        settings = {
            "num_cpus": self._threads if self._kind == "CPU" else 0,  # GPUs are the limit
            "num_gpus": int(self._kind == "GPU"),
            "max_restarts": -1,
            "max_task_retries": TRIES,
        }
        actor = self._ray.remote(**settings)(RayWorker)
        return actor.remote(environment, str(Path.cwd()), self._threads)

    def first_finished(self, futures: Sequence[Any], seconds: float) -> Any | None:
        """Implement `pool.Engine`."""
        ready, _ = self._ray.wait(list(futures), num_returns=1, timeout=seconds)
        return ready[0] if ready else None

    def result(self, future: Any) -> bytes:
        """Implement `pool.Engine`. Raises InputError if the worker and its replacements died."""
        try:
            answer: bytes = self._ray.get(future)
        except self._ray.exceptions.RayError as error:
            raise InputError(
                f"A worker of the cluster and its replacements died ({_last_line(error)}). Its "
                "machine may have too little memory or may lack this package."
            ) from error
        return answer

    def stop(self) -> None:
        """Implement `pool.Engine`."""
        for actor in self._actors.values():
            self._ray.kill(actor, no_restart=True)
        self._actors = {}


def _cores_of_worker(node: Mapping[str, float], kind: str) -> int:
    """Return the CPU cores that a worker on a machine can use: its share if each GPU has a worker.

    node: the resources of the machine.
    """
    gpus = int(node.get("GPU", 0))
    cores = int(node.get("CPU", 0))
    return cores if kind == "CPU" else cores // gpus if gpus else 0


class RayWorker:
    """A worker as a Ray actor, a separate process on a machine of the cluster."""

    def __init__(self, environment: dict[str, str], folder: str, threads: int) -> None:
        os.environ.update(environment)
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        if Path(folder).is_dir():
            os.chdir(folder)  # paths in a recipe may be relative
        import torch

        from .pool import Worker

        torch.set_num_threads(threads)
        self._worker = Worker()

    def run(self, payload: bytes, unit: bytes) -> bytes:
        """Run a packed unit, see `pool.Worker`."""
        return self._worker.run(payload, unit)
