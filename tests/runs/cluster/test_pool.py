"""Order of results, assignment of units and end of work with simulated workers; `make cluster` uses
Ray.
"""

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from pretended import Pretended, on

import lrcore
from lrcore.runs.cluster.pickling import pack, unpack
from lrcore.runs.cluster.pool import Queue
from lrcore.system import errors
from lrcore.system.errors import Cancelled, ResourceError
from lrcore.system.units import HERE, Work, map_units, workers


@dataclass
class Squares:
    """Task that squares units; begun: the units that this copy received."""

    def __post_init__(self):
        self.begun = []

    def __call__(self, unit, progress):
        self.begun.append(unit)
        return unit**2, len(self.begun)


def raising(unit, progress):
    raise {"Peculiar": Peculiar("a reason", 2)}.get(unit) or getattr(errors, unit)("a reason")


class Peculiar(Exception):
    """Exception that a different process cannot recreate from its text."""

    def __init__(self, first, second):
        super().__init__(first)


def squares(seen, units=range(7)):
    return [
        square
        for square, _ in map_units(Work("square", Squares()), units, lambda *s: seen.append(s))
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_results_have_the_order_of_the_units(count) -> None:
    engine, seen = Pretended(count), []
    with on(engine):
        assert workers().count == count
        assert squares(seen) == [unit**2 for unit in range(7)]
        assert squares([], []) == []
    assert workers() is HERE
    assert len(engine.sent) == 7
    assert seen[0] == ("square", 0, 7)
    assert seen[-1] == ("square", 7, 7)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert not engine.stopped
    alone = []
    assert squares(alone) == [unit**2 for unit in range(7)]
    assert alone == [("square", done, 7) for done in range(8)]


def test_a_task_is_unpacked_once_by_each_worker() -> None:
    engine = Pretended(2)
    with on(engine):
        counts = [count for _, count in map_units(Work("s", Squares()), range(6), lambda *_: None)]
    assert sorted(counts) == sorted(
        number + 1 for worker in (0, 1) for number in range(engine.sent.count(worker))
    )


def test_units_of_a_key_stay_with_a_worker_until_others_are_idle() -> None:
    queue = Queue(["a1", "a2", "a3", "a4", "b1", "b2"], lambda unit: unit[0])
    assert [queue.next(0), queue.next(1)] == [0, 4]
    assert [queue.next(1), queue.next(0)] == [5, 1]
    assert queue.next(1) == 2  # b is complete, so the remaining units of a are shared
    assert [queue.next(0), queue.next(0), queue.next(1)] == [3, None, None]


def test_a_worker_that_dies_does_not_change_the_results() -> None:
    engine = Pretended(2, dying=(0, 3, 4))
    with on(engine):
        assert squares([]) == [unit**2 for unit in range(7)]
    assert len(engine.sent) == 7


def test_an_exception_of_the_progress_callback_stops_the_workers() -> None:
    def stop(stage, done, total):
        if done == 2:
            raise Cancelled

    engine = Pretended(2)
    with on(engine), pytest.raises(Cancelled):
        list(map_units(Work("square", Squares()), range(9), stop))
    assert engine.stopped == 1
    assert len(engine.sent) == 3  # the third unit started before the first result arrived
    with on(engine):
        assert squares([]) == [unit**2 for unit in range(7)]


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        ("InputError", lrcore.InputError),
        ("ResourceError", ResourceError),
        ("Peculiar", RuntimeError),
    ],
)
def test_exceptions_of_tasks_are_raised_in_the_main_process(raised, kind) -> None:
    engine = Pretended()
    with on(engine), pytest.raises(kind, match="a reason") as caught:
        list(map_units(Work("raise", raising), [raised, raised], lambda *_: None))
    assert engine.stopped
    assert type(caught.value) is kind


def test_a_model_is_sent_as_its_path(tiny_llama, tiny_opt) -> None:
    model = lrcore.load(str(tiny_llama), dtype="bfloat16")
    payload = pack({"model": model, "again": model})
    assert len(payload) < 1000
    copy = unpack(payload)["model"]
    assert (copy.name, copy.dtype) == (model.name, "bfloat16")
    assert copy.fingerprint == model.fingerprint
    second = lrcore.load(str(tiny_opt))
    second.fingerprint = "of a model in memory"
    with pytest.raises(lrcore.InputError, match="Save the model to a folder"):
        unpack(pack(second))


def test_missing_ray_is_reported_in_one_line(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert lrcore.cli.main(["allocate", "demo-llama", "--cluster", "auto"]) == 2
    assert "Run `pip install 'ray[default]'`" in capsys.readouterr().err


def test_ray_is_imported_only_if_requested() -> None:
    package = Path(lrcore.__file__).parent
    asking = [file for file in package.rglob("*.py") if "import ray" in file.read_text()]
    assert asking == [package / "runs" / "cluster" / "ray_engine.py"]
    top = ast.parse(asking[0].read_text()).body
    assert not [
        node for node in top if isinstance(node, ast.Import) and node.names[0].name == "ray"
    ]
