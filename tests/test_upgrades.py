"""Files of other versions: released formats are read, files of other formats are made again without
a message. Caches of every kind, cells of a sweep, the state of a healing; tests/released.py wrote
the fixture.
"""

import importlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from released import CACHED, FOLDER, STATE, heals, on_one_machine, prepares, sweeps
from safetensors import safe_open
from safetensors.torch import load, load_file, save, save_file

import lrcore
from lrcore.compression.evidence import type_search
from lrcore.compression.steps.healing.distillation import EVERY
from lrcore.recipes.history import Healed
from lrcore.runs import sweep_store
from lrcore.system import cache

# What the name of a file in the cache follows from, beside what was measured: a format, or for what
# has none a number that counts in its place. None: contents, or the code, name the file.
FORMATS = {
    "moments": ("compression.calibration.calibrate", "FORMAT"),
    "gradients": ("compression.calibration.gradients", "FORMAT"),
    "spectra": ("compression.analyze", "FORMAT"),
    "probes": ("compression.evidence.layer_probes", "FORMAT"),
    "latency": ("compression.evidence.latency", "FORMAT"),
    "searches": ("compression.evidence.search", "ROUNDS"),
    "type_searches": ("compression.evidence.type_search", "RUNS"),
    "gguf": ("models.gguf_import", "FORMAT"),
    "adapters": ("models.lora_import", "FORMAT"),
    "tokens": ("data.tokens", "FORMAT"),
    "texts": None,
    "listings": None,
}
MODELS = ("gguf", "adapters")  # model folders, whose damage has tests of its own
Held = dict[Path, bytes]


@pytest.fixture
def released(tmp_path, monkeypatch):
    """A copy of the fixture, as the present folder with its own cache."""
    folder = shutil.copytree(FOLDER, tmp_path / "released")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LRCORE_CACHE", "cache")
    on_one_machine(monkeypatch)
    return folder


def files(folder: Path) -> Held:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_kind_of_the_cache_has_a_fixture_and_a_test():
    kinds = cache.KINDS.keys() - {cache.OFFLOADED}  # of running processes alone
    assert {path.name for path in (FOLDER / "cache").iterdir()} == kinds
    assert CACHED.keys() == FORMATS.keys() == kinds


@pytest.mark.parametrize("kind", CACHED)
def test_what_was_cached_before_is_read(released, kind):
    """Where this fails after a change of a format or of what is collected, tests/released.py writes
    the fixture anew.
    """
    before = files(released / "cache" / kind)
    assert before
    CACHED[kind]()
    assert files(released / "cache" / kind) == before


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("kind", [kind for kind in FORMATS if FORMATS[kind]])
def test_a_cache_of_another_format_is_made_again_and_equal(released, kind, change, monkeypatch):
    """An older version reads none of a newer one, nor the other way round."""
    path, name = FORMATS[kind]
    module = importlib.import_module(f"lrcore.{path}")
    before = files(released / "cache" / kind)
    monkeypatch.setattr(module, name, getattr(module, name) + change if name == "FORMAT" else 2)
    CACHED[kind]()
    after = files(released / "cache" / kind)
    assert {path: after[path] for path in before} == before
    made = after.keys() - before.keys()
    assert made
    for path in made:
        if path.suffix == ".safetensors":
            (old,) = [earlier for earlier in before if earlier.name == path.name] or before
            assert_nearly_equal(load_file(old), load_file(path))


def assert_nearly_equal(old: dict, new: dict) -> None:
    """Another processor rounds otherwise."""
    assert old.keys() == new.keys()
    for name, value in old.items():
        torch.testing.assert_close(new[name], value, rtol=1e-3, atol=1e-4)


@pytest.fixture
def quick_search(monkeypatch):
    """The search by types takes a minute."""

    def weights(types, loss, progress):
        return dict.fromkeys(types, 1.0)

    monkeypatch.setattr(type_search, "best_weights", weights)


DAMAGES = {
    ".json": (b"5", b"{}", b'[["x"]]', b"[" * 100_000, b"\xff"),
    ".safetensors": (save({}), save({"x": torch.ones(2)}, {"tokens": "many"}), b"\xff" * 99, b""),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("kind", [kind for kind in FORMATS if FORMATS[kind] and kind not in MODELS])
def test_a_file_of_the_cache_that_holds_something_else_is_made_again(
    released, kind, at, quick_search
):
    before = files(released / "cache" / kind)
    for path in before:
        damages = DAMAGES[path.suffix]
        path.write_bytes(damages[at % len(damages)])
    (CACHED | {"moments": prepares("uniform")})[kind]()  # which writes what is beside them, too
    for path, held in files(released / "cache" / kind).items():
        if path.suffix == ".safetensors":
            assert_nearly_equal(load(before[path]), load(held))
        else:
            assert shape_of(json.loads(held)) == shape_of(json.loads(before[path]))


def poorer(value: object) -> object:
    """JSON with an item less in every list that holds no lists, or else in a mapping."""
    if isinstance(value, dict):
        less = {name: poorer(entry) for name, entry in value.items()}
        return less if less != value else dict(list(value.items())[1:])
    if not isinstance(value, list) or not value:
        return value
    nested = [poorer(entry) for entry in value]
    return nested if nested != value else value[1:]


WRONG = {
    "NaN": lambda text: re.sub(r"\d+\.\d+(e-\d+)?", "NaN", text),
    "infinity": lambda text: re.sub(r"\d+\.\d+(e-\d+)?", "1e999", text, count=1),
    "too few": lambda text: json.dumps(poorer(json.loads(text))),
}


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *(("probes", how) for how in WRONG),
        ("latency", "too few"),
        ("searches", "infinity"),
        ("type_searches", "too few"),
    ],
)
def test_numbers_of_the_cache_that_are_not_finite_or_too_few_are_measured_again(
    released, kind, how, quick_search
):
    before = files(released / "cache" / kind)
    for path, held in before.items():
        path.write_text(WRONG[how](held.decode()))
    wrong = files(released / "cache" / kind)
    assert all(wrong[path] != held for path, held in before.items())
    CACHED[kind]()
    for path, held in files(released / "cache" / kind).items():
        assert held != wrong[path]
        assert shape_of(json.loads(held)) == shape_of(json.loads(before[path]))


def test_a_text_of_the_cache_that_somebody_changed_is_written_again(released):
    (path,) = files(released / "cache" / "texts")
    held = path.read_bytes()
    path.write_bytes(held[:-9])
    CACHED["texts"]()
    assert path.read_bytes() == held


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if FORMATS[kind] and kind not in MODELS])
def test_a_pipe_in_the_place_of_a_file_of_the_cache_is_named_and_not_waited_for(
    released, kind, quick_search
):
    for path in files(released / "cache" / kind):
        path.unlink()
        os.mkfifo(path)
    with pytest.raises(lrcore.InputError, match="is a device, a pipe or a socket"):
        CACHED[kind]()


def shape_of(values: object) -> object:
    """JSON without its numbers."""
    if isinstance(values, dict):
        return {name: shape_of(value) for name, value in values.items()}
    if isinstance(values, list):
        return [shape_of(value) for value in values]
    return type(values)


@pytest.mark.parametrize("kind", ["texts", "listings"])
def test_what_is_named_by_contents_or_code_is_made_again_for_others(released, kind, monkeypatch):
    before = files(released / "cache" / kind)
    monkeypatch.setattr("lrcore.cli.listing._state", lambda: "of other code")
    monkeypatch.setitem(
        CACHED, "texts", lambda: lrcore.calibrate(lrcore.load("dense"), of(["another"]))
    )
    CACHED[kind]()
    after = files(released / "cache" / kind)
    assert before.items() < after.items()


def of(text: list[str]) -> lrcore.Recipe:
    return lrcore.Recipe("dense", data=[" ".join(text * 99)], samples=1, seq_len=8)


def test_cells_of_a_sweep_that_was_made_before_are_read(released, monkeypatch):
    before = files(released / "sweep")
    monkeypatch.setattr(sweep_store, "evaluate", lambda *given, **more: pytest.fail("measured"))
    rows = sweeps()
    assert files(released / "sweep") == before
    assert {(row["method"], row["ratio"]) for row in rows} == {
        ("dense", 0.0),
        ("svd", 0.3),
        ("care", 0.3),
    }


@pytest.mark.parametrize("change", [-1, 1])
def test_cells_of_another_format_are_made_again_and_stay(released, change, monkeypatch):
    before, rows = files(released / "sweep"), sweeps()
    monkeypatch.setattr(sweep_store, "FORMAT", sweep_store.FORMAT + change)
    assert_same_figures(sweeps(), rows)
    after = files(released / "sweep")
    assert before.items() < after.items()
    assert len([*(released / "sweep" / "cells").iterdir()]) == 6


@pytest.mark.parametrize("how", ["a column more", "a column less", "cut", "empty", "no rows"])
def test_a_cell_that_cannot_be_read_is_made_again(released, how):
    rows = sweeps()
    for path in (released / "sweep" / "cells").iterdir():
        cell = json.loads(path.read_text())
        if how == "a column more":
            cell["rows"] = [row | {"of_a_later_version": 1} for row in cell["rows"]]
        elif how == "a column less":
            for row in cell["rows"]:
                del row["method"]
        elif how == "no rows":
            del cell["rows"]
        content = json.dumps(cell)
        path.write_text({"cut": content[: len(content) // 2], "empty": ""}.get(how, content))
    assert_same_figures(sweeps(), rows)


def assert_same_figures(new: list[dict], old: list[dict]) -> None:
    """Another processor rounds otherwise."""
    assert [(row["method"], row["ratio"]) for row in new] == [
        (row["method"], row["ratio"]) for row in old
    ]
    for new_row, old_row in zip(new, old, strict=True):
        assert new_row["perplexity"] == pytest.approx(old_row["perplexity"], rel=1e-3)


def test_a_healing_goes_on_from_the_state_that_was_kept_before(released):
    steps = []
    heals(lambda stage, done, total: steps.append(done))
    assert steps[0] == EVERY


@pytest.mark.parametrize("format", ["0", "2", None])
def test_a_healing_does_not_take_a_state_of_another_format(released, format):
    with safe_open(STATE, "pt") as opened:
        metadata = opened.metadata()
    assert metadata.pop("format") == "1"
    named = {} if format is None else {"format": format}
    tensors = load_file(STATE)
    tensors = {"of another format": next(iter(tensors.values()))}
    save_file(tensors, STATE, metadata | named)
    steps = []
    made = heals(lambda stage, done, total: steps.append(done))
    assert steps[0] == 0
    assert len(made.step(Healed).cross_entropy) == 60
