"""Data sets with cards that refer to files of this machine or to other hosts."""

import pytest

from lrcore import InputError
from lrcore.data import load_texts
from lrcore.data.hub_safety import check_card

OUTSIDE = (
    "/etc/hostname",
    "../secret.txt",
    "data/../../secret.txt",
    "..\\secret.txt",
    "~/secret.txt",
    "http://169.254.169.254/latest/meta-data",
    "https://evil.example/x.txt",
    "file:///etc/hostname",
    "zip://x.txt::http://evil.example/x.zip",
    "hf://datasets/owner/private/x.txt",
)


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("card", ["README.md", ".huggingface.yaml"])
def test_a_card_that_names_files_outside_its_folder_is_refused(path, card, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("a secret\n" * 20)
    (folder / "train.txt").write_text("some words\n" * 20)
    declared = (
        f"configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: '{path}'\n"
    )
    (folder / card).write_text(f"---\n{declared}---\n" if card == "README.md" else declared)
    with pytest.raises(InputError, match="which is outside the data set"):
        load_texts(str(folder))


def test_all_forms_of_a_card_are_checked():
    for files in ("/x", ["/x"], {"train": "/x"}, [{"split": "train", "path": ["a", "/x"]}]):
        with pytest.raises(InputError):
            check_card("name", {"configs": [{"data_files": files}]})
    with pytest.raises(InputError):
        check_card("name", {"configs": [{"data_dir": ".."}]})
    valid = {"configs": [{"data_files": [{"split": "train", "path": "data/a..b-*.jsonl"}]}]}
    for card in (valid, {}, None, [], {"configs": "x"}, {"configs": [1]}):
        check_card("name", card)


def test_a_card_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "README.md").write_text("---\n: [\n---\n")
    (tmp_path / "train.txt").write_text("some words\n" * 20)
    with pytest.raises(InputError, match=r"card 'README\.md'"):
        load_texts(str(tmp_path))


@pytest.mark.parametrize("name", ["text", "json", "csv", "pandas", "imagefolder:x:train"])
def test_the_name_of_a_file_format_does_not_read_the_working_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.txt").write_text("a secret\n" * 20)
    with pytest.raises(InputError, match="Unknown data set"):
        load_texts(name)


@pytest.mark.parametrize(
    "name", ["http://169.254.169.254/x", "owner/..", "../owner", "owner/na?me", "hf://x/y", "a/b/c"]
)
def test_names_that_are_not_hub_ids_are_not_requested(name, monkeypatch):
    import datasets
    import huggingface_hub

    def never(*_, **__):
        pytest.fail("a request was sent to the hub")

    if name.startswith(("http", "hf")):  # a colon would end the name
        name = name.replace(":", "%3a")
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", never)
    monkeypatch.setattr(datasets, "load_dataset_builder", never)
    with pytest.raises(InputError):
        load_texts(name)
