"""Pickle files that would run code, in place of all files that are read."""

import pickle
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from packed_files import MakesFolder, pickles

import lrcore
from lrcore.data import load_texts
from workbench.jobs import KINDS
from workbench.state.store import Store
from workbench.tabs.experiments import paper_table as table
from workbench.widgets import calibration_text, sidebar

NAMES = tuple(pickles("marker"))
# Files that training leaves in the folder of a model.
TRAINING_FILES = (
    "training_args.bin",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "scaler.joblib",
)
# Files of a checkpoint in the order of reading.
CHECKPOINT_FILES = (
    "lrcore.json",
    "report.json",
    "config.json",
    "tokenizer.json",
    "model.safetensors",
)


@pytest.fixture
def files(tmp_path):
    """Yield pickles by file name, and check that none was unpickled."""
    marker = tmp_path / "executed"
    yield pickles(marker)
    assert not marker.exists()


def assert_refused(read, *values):
    with pytest.raises(lrcore.InputError) as error:
        read(*values)
    assert "\n" not in str(error.value)


def test_the_pickles_run_code_if_they_are_unpickled(tmp_path):
    marker = tmp_path / "executed"
    made = pickles(marker)
    for name in made:
        (tmp_path / name).write_bytes(made[name])

        if name.startswith("rows.np"):
            read = np.load(tmp_path / name, allow_pickle=True)
            list(read.values() if name.endswith("z") else read)
        elif name.endswith((".bin", ".pt")):
            torch.load(tmp_path / name, weights_only=False)
        else:
            pickle.loads(made[name])
        marker.rmdir()  # made by the pickle


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_is_a_pickle_is_refused(name, files, tiny_llama, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama, folder)
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(files[name])
    assert_refused(lrcore.load, str(folder))
    assert_refused(lrcore.load, str(folder / name))
    for file_name in ("model.safetensors", "model.gguf"):  # regardless of its name
        (folder / file_name).write_bytes(files[name])
        assert_refused(lrcore.load, str(folder if file_name.endswith("s") else folder / file_name))


def test_a_model_with_pickles_of_its_training_can_be_loaded(files, tiny_llama, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama, folder)
    for name in (*TRAINING_FILES, *files):
        (folder / name).write_bytes(files["pytorch_model.bin"])
    assert lrcore.load(str(folder)).history == ()


@pytest.mark.parametrize("name", NAMES)
def test_texts_that_are_pickles_are_refused(name, files, tmp_path):
    (tmp_path / "texts").mkdir()
    for called in (name, "train.txt", "train.json", "train.jsonl", "train.parquet"):
        file = tmp_path / "texts" / called
        file.write_bytes(files[name])
        assert_refused(load_texts, str(file))
        assert_refused(load_texts, str(file.parent))
        file.unlink()


@pytest.mark.parametrize("made", ["file", "folder"])
def test_a_pickled_column_type_of_a_parquet_file_is_not_unpickled(made, tmp_path):
    """Earlier versions of pyarrow unpickled column types defined in Python."""
    marker = tmp_path / "executed"
    about = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(MakesFolder(marker)),
    }
    texts = pa.array(["a text of some words"] * 20)
    field = pa.field("text", pa.string(), metadata=about)
    (tmp_path / "texts").mkdir()
    pq.write_table(pa.table([texts], pa.schema([field])), tmp_path / "texts" / "train.parquet")
    source = tmp_path / "texts" / "train.parquet" if made == "file" else tmp_path / "texts"
    assert len(load_texts(str(source)).documents) == 20
    assert not marker.exists()


@pytest.mark.parametrize("name", CHECKPOINT_FILES)
def test_a_checkpoint_with_a_pickle_in_place_of_a_file_is_refused(name, files, care, tmp_path):
    folder = lrcore.save(care, tmp_path / "small")
    for content in files.values():
        (folder / name).write_bytes(content)
        assert_refused(lrcore.load, str(folder))


@pytest.mark.parametrize("name", NAMES)
def test_an_uploaded_pickle_is_refused(name, files, tmp_path):
    """Its name has a file type that can be uploaded."""
    store = Store(tmp_path / "runs", KINDS)
    for called in ("recipe.json", "recipe.yaml", "text.txt", "rows.jsonl"):
        (tmp_path / called).write_bytes(files[name])
        path = str(tmp_path / called)
        assert_refused(sidebar.load_recipe, path)
        assert_refused(table.load_file, path)
        assert_refused(calibration_text.store_upload, store, path)
    assert_refused(calibration_text.store_upload, store, str(tmp_path / name))


def test_pickles_in_the_cache_are_ignored(files, tiny_llama, story_file, tmp_path, monkeypatch):
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / "cache"))
    recipe = lrcore.Recipe(
        str(tiny_llama), data=str(story_file), policy="probed", samples=2, seq_len=16, ratio=0.3
    )
    ranks = lrcore.compress(lrcore.load(str(tiny_llama)), recipe).ranks
    cache_files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert cache_files
    for path in cache_files:
        path.write_bytes(files["pytorch_model.bin"])
        for name, content in files.items():
            (path.parent / name).write_bytes(content)
    assert lrcore.compress(lrcore.load(str(tiny_llama)), recipe).ranks == ranks


def test_pickles_among_the_runs_are_ignored(files, care, tmp_path):
    folder = tmp_path / "runs"
    saved_run = lrcore.Runs(folder).write("good", care.recipe, care)
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name.replace(".", "-")).mkdir()
        for called in ("lrcore.json", "report.json", "recipe.json", "model.safetensors"):
            (folder / name.replace(".", "-") / called).write_bytes(content)
    assert [run.id for run in lrcore.Runs(folder).all()] == [saved_run.id]
