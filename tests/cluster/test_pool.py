"""The order of results, which worker gets what, and how work ends, with workers that are only
pretended; `make cluster` has Ray's.
"""

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from pretended import Pretended, on

import lrcore
from lrcore.cluster.pickling import pack, unpack
from lrcore.cluster.queue import Queue
from lrcore.units import HERE, Work, each, workers


@dataclass
class Squares:
    """A task; begun: the units that this copy of it was given."""

    def __post_init__(self):
        self.begun = []

    def __call__(self, unit, progress):
        self.begun.append(unit)
        return unit**2, len(self.begun)


def raising(unit, progress):
    raise {"Peculiar": Peculiar("a reason", 2)}.get(unit) or getattr(lrcore, unit)("a reason")


class Peculiar(Exception):
    """One that another process cannot make of its words."""

    def __init__(self, one, other):
        super().__init__(one)


def squares(seen, units=range(7)):
    return [own for own, _ in each(Work("square", Squares()), units, lambda *s: seen.append(s))]


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_results_come_in_the_order_of_the_units(count) -> None:
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
        counts = [count for _, count in each(Work("s", Squares()), range(6), lambda *_: None)]
    assert sorted(counts) == sorted(
        number + 1 for worker in (0, 1) for number in range(engine.sent.count(worker))
    )


def test_units_of_a_key_stay_with_one_worker_until_another_has_nothing_left() -> None:
    queue = Queue(["a1", "a2", "a3", "a4", "b1", "b2"], lambda unit: unit[0])
    assert [queue.next(0), queue.next(1)] == [0, 4]
    assert [queue.next(1), queue.next(0)] == [5, 1]
    assert queue.next(1) == 2  # b is at its end: what a has left is shared
    assert [queue.next(0), queue.next(0), queue.next(1)] == [3, None, None]


def test_a_worker_that_died_leaves_the_same_results() -> None:
    engine = Pretended(2, dying=(0, 3, 4))
    with on(engine):
        assert squares([]) == [unit**2 for unit in range(7)]
    assert len(engine.sent) == 7


def test_what_progress_raises_stops_the_workers() -> None:
    def stop(stage, done, total):
        if done == 2:
            raise lrcore.Cancelled

    engine = Pretended(2)
    with on(engine), pytest.raises(lrcore.Cancelled):
        list(each(Work("square", Squares()), range(9), stop))
    assert engine.stopped == 1
    assert len(engine.sent) == 3  # the third began before it was known that two are done
    with on(engine):
        assert squares([]) == [unit**2 for unit in range(7)]


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        ("InputError", lrcore.InputError),
        ("Shortage", lrcore.Shortage),
        ("Peculiar", RuntimeError),
    ],
)
def test_what_a_task_raises_is_raised_here(raised, kind) -> None:
    engine = Pretended()
    with on(engine), pytest.raises(kind, match="a reason") as caught:
        list(each(Work("raise", raising), [raised, raised], lambda *_: None))
    assert engine.stopped
    assert type(caught.value) is kind


def test_a_model_travels_as_its_place(tiny_llama, tiny_opt) -> None:
    model = lrcore.load(str(tiny_llama), dtype="bfloat16")
    payload = pack({"model": model, "again": model})
    assert len(payload) < 1000
    there = unpack(payload)["model"]
    assert (there.name, there.dtype) == (model.name, "bfloat16")
    assert there.fingerprint == model.fingerprint
    other = lrcore.load(str(tiny_opt))
    other.fingerprint = "of something made in memory"
    with pytest.raises(lrcore.InputError, match="Save the model to a folder"):
        unpack(pack(other))


def test_without_ray_it_is_one_sentence(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert lrcore.cli.main(["allocate", "demo-llama", "--cluster", "auto"]) == 2
    assert "Run `pip install 'ray[default]'`" in capsys.readouterr().err


def test_nothing_imports_ray_unless_it_is_asked_for() -> None:
    own = Path(lrcore.__file__).parent
    asking = [file for file in own.rglob("*.py") if "import ray" in file.read_text()]
    assert asking == [own / "cluster" / "ray_engine.py"]
    top = ast.parse(asking[0].read_text()).body
    assert not [one for one in top if isinstance(one, ast.Import) and one.names[0].name == "ray"]
