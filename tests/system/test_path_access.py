"""Folders to which models and texts are restricted, and paths that lead out of them."""

import os

import pytest

import lrcore
from lrcore.data import load_texts
from lrcore.system.path_access import place_of, restrict_paths, strip_paths


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "allowed"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("a secret " * 10)
    restrict_paths([folder, tmp_path / "allowed"])
    yield folder
    restrict_paths([])


@pytest.fixture
def model(root, tiny_llama):
    """Return the folder of a model in the allowed folder."""
    (root / "model").mkdir()
    for file in tiny_llama.iterdir():
        (root / "model" / file.name).write_bytes(file.read_bytes())
    return root / "model"


OUTSIDE = (
    "../secret.txt",
    "x/../../secret.txt",
    "/etc/hostname",
    "link.txt",
    "folder/secret.txt",
    "round.txt",
    "zero\0.txt",
)


@pytest.mark.parametrize("name", OUTSIDE)
def test_paths_outside_are_refused_whether_or_not_they_exist(root, name):
    (root / "link.txt").symlink_to(root.parent / "secret.txt")
    (root / "folder").symlink_to(root.parent)
    (root / "round.txt").symlink_to(root / "round.txt")
    for read in (load_texts, lrcore.load, place_of):
        if read is place_of or "\0" not in name:
            with pytest.raises(lrcore.InputError, match="outside the folders"):
                read(name)
    with pytest.raises(lrcore.InputError) as existing:
        load_texts("/etc/hosts.txt")
    with pytest.raises(lrcore.InputError) as missing:
        load_texts("/etc/none.txt")
    assert str(existing.value).replace("hosts", "none") == str(missing.value)


def test_relative_names_start_in_the_allowed_folder_and_built_in_names_are_valid(root, model):
    (root / "a.txt").write_text("some words " * 10)
    assert load_texts("a.txt").source == "a.txt"
    assert load_texts(str(root / "a.txt")).documents == load_texts("./a.txt").documents
    assert lrcore.load("model").name == "model"
    assert load_texts("stories").documents
    assert lrcore.load("demo-llama").name == "demo-llama"
    assert place_of("owner/name") == root / "owner/name"  # does not exist, so it may be a hub id


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_model_with_links_to_files_outside_is_refused(root, model, file):
    (model / file).rename(root.parent / file)
    (model / file).symlink_to(root.parent / file)
    with pytest.raises(lrcore.InputError, match=f"'model/{file}' links to a path outside"):
        lrcore.load("model")
    restrict_paths([])
    assert lrcore.load(str(model))  # without restriction, links are followed


def test_links_within_the_folders_are_followed(root, model):
    (model / "config.json").rename(root / "config.json")
    (model / "config.json").symlink_to(root / "config.json")
    (root / "other").symlink_to(model)
    assert lrcore.load("other").name == "other"


def test_a_folder_of_texts_with_links_to_files_outside_is_refused(root):
    (root / "texts").mkdir()
    (root / "texts" / "train.txt").symlink_to(root.parent / "secret.txt")
    with pytest.raises(lrcore.InputError, match="links to a path outside"):
        load_texts("texts")


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(lrcore.InputError, match="No folder"):
        restrict_paths([tmp_path / "none"])
    assert place_of("~") == place_of(os.path.expanduser("~"))


def test_texts_of_errors_are_unchanged_without_restriction():
    assert strip_paths("Cannot read '/a/b.txt'.") == "Cannot read '/a/b.txt'."
