"""Files of other versions: released formats are read, files of other formats are silently
recomputed.

This covers caches of all kinds, cells of a sweep, and the state of healing; tests/released.py wrote
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
from released import (
    CACHED,
    FOLDER,
    STATE,
    STOPPED,
    distills,
    heals,
    on_one_machine,
    prepares,
    stops,
    sweeps,
)
from safetensors import safe_open
from safetensors.torch import load, load_file, save, save_file

import lrcore
from lrcore.compression.evidence import type_search
from lrcore.compression.steps.healing.distillation import EVERY
from lrcore.recipes.history import Healed
from lrcore.runs import sweep_store
from lrcore.system import cache

pytestmark = pytest.mark.one_in(2)

# The number in the key of a cached file, apart from the measured object: a format, or a constant
# used in its place. None: files are named by contents or code.
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
    "distillations": ("compression.solve.distill", "REVISION"),
    "texts": None,
    "listings": None,
}
MODELS = ("gguf", "adapters")  # model folders, with separate tests of damage
Held = dict[Path, bytes]


@pytest.fixture
def released(tmp_path, monkeypatch):
    """Return a copy of the fixture, used as the working folder with its cache."""
    folder = shutil.copytree(FOLDER, tmp_path / "released")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LRCORE_CACHE", "cache")
    on_one_machine(monkeypatch)
    return folder


def files(folder: Path) -> Held:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_each_kind_of_cache_has_a_fixture_and_a_test():
    kinds = cache.KINDS.keys() - {cache.OFFLOADED}  # files of running processes only
    assert {path.name for path in (FOLDER / "cache").iterdir()} == kinds
    assert CACHED.keys() == FORMATS.keys() == kinds


@pytest.mark.parametrize("kind", CACHED)
def test_released_cache_files_are_read(released, kind):
    """After a change of a format or of the collected data, run tests/released.py to update the
    fixture.
    """
    before = files(released / "cache" / kind)
    assert before
    CACHED[kind]()
    assert files(released / "cache" / kind) == before


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("kind", [kind for kind in FORMATS if FORMATS[kind]])
def test_a_cache_of_a_different_format_is_recomputed_with_equal_values(
    released, kind, change, monkeypatch
):
    """Neither version reads files of the other."""
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


def assert_nearly_equal(old: dict, new: dict, atol: float = 1e-4) -> None:
    """Compare with a tolerance, because other processors round differently."""
    assert old.keys() == new.keys()
    for name, value in old.items():
        torch.testing.assert_close(new[name], value, rtol=1e-3, atol=atol)


@pytest.fixture
def quick_search(monkeypatch):
    """Skip the search by types, which takes a minute."""

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
def test_a_cached_file_with_invalid_content_is_recomputed(released, kind, at, quick_search):
    before = files(released / "cache" / kind)
    for path in before:
        damages = DAMAGES[path.suffix]
        path.write_bytes(damages[at % len(damages)])
    CACHED[kind]()
    if kind == "moments":
        prepares("uniform")()  # reads these moments, and writes the related file
    for path, held in files(released / "cache" / kind).items():
        if path.suffix == ".safetensors":
            # some processors train with products in bfloat16
            atol = 1e-2 if kind == "distillations" else 1e-4
            assert_nearly_equal(load(before[path]), load(held), atol)
        else:
            assert shape_of(json.loads(held)) == shape_of(json.loads(before[path]))


def with_fewer_items(value: object) -> object:
    """Remove an item from each innermost list of JSON values, or else from a mapping."""
    if isinstance(value, dict):
        less = {name: with_fewer_items(entry) for name, entry in value.items()}
        return less if less != value else dict(list(value.items())[1:])
    if not isinstance(value, list) or not value:
        return value
    nested = [with_fewer_items(entry) for entry in value]
    return nested if nested != value else value[1:]


CORRUPTIONS = {
    "NaN": lambda text: re.sub(r"\d+\.\d+(e-\d+)?", "NaN", text),
    "infinity": lambda text: re.sub(r"\d+\.\d+(e-\d+)?", "1e999", text, count=1),
    "too few": lambda text: json.dumps(with_fewer_items(json.loads(text))),
}


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *(("probes", how) for how in CORRUPTIONS),
        ("latency", "too few"),
        ("searches", "infinity"),
        ("type_searches", "too few"),
    ],
)
def test_cached_numbers_that_are_nonfinite_or_too_few_are_measured_again(
    released, kind, how, quick_search
):
    before = files(released / "cache" / kind)
    for path, held in before.items():
        path.write_text(CORRUPTIONS[how](held.decode()))
    wrong = files(released / "cache" / kind)
    assert all(wrong[path] != held for path, held in before.items())
    CACHED[kind]()
    for path, held in files(released / "cache" / kind).items():
        assert held != wrong[path]
        assert shape_of(json.loads(held)) == shape_of(json.loads(before[path]))


def test_a_modified_cached_text_is_written_again(released):
    (path,) = files(released / "cache" / "texts")
    held = path.read_bytes()
    path.write_bytes(held[:-9])
    CACHED["texts"]()
    assert path.read_bytes() == held


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if FORMATS[kind] and kind not in MODELS])
def test_a_pipe_instead_of_a_cached_file_is_reported_without_waiting(released, kind, quick_search):
    for path in files(released / "cache" / kind):
        path.unlink()
        os.mkfifo(path)
    with pytest.raises(lrcore.InputError, match="is a device, a pipe or a socket"):
        CACHED[kind]()


def shape_of(values: object) -> object:
    """Return JSON values with numbers replaced by types."""
    if isinstance(values, dict):
        return {name: shape_of(value) for name, value in values.items()}
    if isinstance(values, list):
        return [shape_of(value) for value in values]
    return type(values)


@pytest.mark.parametrize("kind", ["texts", "listings"])
def test_entries_named_by_contents_or_code_are_recomputed_for_others(released, kind, monkeypatch):
    before = files(released / "cache" / kind)
    monkeypatch.setattr("lrcore.cli.listing._state", lambda: "of other code")
    monkeypatch.setitem(
        CACHED, "texts", lambda: lrcore.calibrate(lrcore.load("dense"), recipe_of_text(["another"]))
    )
    CACHED[kind]()
    after = files(released / "cache" / kind)
    assert before.items() < after.items()


def recipe_of_text(text: list[str]) -> lrcore.Recipe:
    return lrcore.Recipe("dense", data=[" ".join(text * 99)], samples=1, seq_len=8)


def test_released_cells_of_a_sweep_are_read(released, monkeypatch):
    before = files(released / "sweep")
    monkeypatch.setattr(sweep_store, "evaluate", lambda *_, **__: pytest.fail("evaluated again"))
    rows = sweeps()
    assert files(released / "sweep") == before
    assert {(row["method"], row["ratio"]) for row in rows} == {
        ("dense", 0.0),
        ("svd", 0.3),
        ("care", 0.3),
    }


@pytest.mark.parametrize("change", [-1, 1])
def test_cells_of_a_different_format_are_computed_again_and_not_deleted(
    released, change, monkeypatch
):
    before, rows = files(released / "sweep"), sweeps()
    monkeypatch.setattr(sweep_store, "FORMAT", sweep_store.FORMAT + change)
    assert_same_figures(sweeps(), rows)
    after = files(released / "sweep")
    assert before.items() < after.items()
    assert len([*(released / "sweep" / "cells").iterdir()]) == 6


@pytest.mark.parametrize("how", ["a column more", "a column less", "cut", "empty", "no rows"])
def test_an_unreadable_cell_is_computed_again(released, how):
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
    """Compare with a tolerance, because other processors round differently."""
    assert [(row["method"], row["ratio"]) for row in new] == [
        (row["method"], row["ratio"]) for row in old
    ]
    for new_row, old_row in zip(new, old, strict=True):
        assert new_row["perplexity"] == pytest.approx(old_row["perplexity"], rel=1e-3)


def test_healing_resumes_from_a_released_state(released):
    steps = []
    heals(lambda stage, done, total: steps.append(done))
    assert steps[0] == EVERY


def test_a_distillation_resumes_from_a_released_state(released):
    steps = []

    def record(stage, done, total):
        if stage == "distill":
            steps.append(done)
        stops(stage, done, total)

    distills(record)
    assert steps == [*range(EVERY, STOPPED + 1)]


@pytest.mark.parametrize("format", ["0", "2", None])
def test_healing_ignores_a_state_of_a_different_format(released, format):
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
