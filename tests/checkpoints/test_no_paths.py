"""Local paths in published files, which have none, and in local checkpoints."""

import json

import pytest
import yaml

import lrcore
from lrcore.checkpoints.paths import strip_paths
from lrcore.recipes.history import Healed


@pytest.fixture(scope="module")
def healed(tiny_llama, story_file, tmp_path_factory):
    """Return a compressed, healed and quantized model with absolute paths of base and data."""
    folder = tmp_path_factory.mktemp("a folder")
    data = folder / "my stories.txt"
    data.write_text(story_file.read_text())
    recipe = lrcore.Recipe(
        model=str(tiny_llama), data=str(data), samples=4, seq_len=32, ratio=0.2, method="svd_llm"
    )
    small = lrcore.compress(lrcore.load(str(tiny_llama)), recipe)
    healing = lrcore.Healing(samples=4, seq_len=32, steps=1, batch=2, test_samples=0)
    return lrcore.quantize(lrcore.heal(small, healing), bits=8), folder, data


def texts(folder):
    """Return the text files of a folder by name."""
    return {
        path.name: path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.suffix != ".safetensors"
    }


def test_no_file_of_an_export_contains_a_local_path(healed, tiny_llama, tmp_path) -> None:
    model, _, data = healed
    result = lrcore.evaluate(model, str(data), samples=2, seq_len=32).to_dict()
    reloaded = lrcore.load(str(lrcore.save(model, tmp_path / "kept")))
    local_paths = {str(tmp_path.parent), str(tiny_llama.parent), str(data.parent)}
    for name, loaded_model in (
        ("made", model),
        ("kept", reloaded),
        ("dense", lrcore.load(str(tiny_llama))),
    ):
        exported_texts = texts(lrcore.export(loaded_model, tmp_path / "out" / name, [result]))
        assert {
            "README.md",
            "lrcore.json",
            "config.json",
            "tokenizer_config.json",
        } <= exported_texts.keys()
        for file, text in exported_texts.items():
            assert not [local_path for local_path in local_paths if local_path in text], (
                name,
                file,
            )
        assert data.name in exported_texts["README.md"]
    exported = lrcore.load(str(tmp_path / "out" / "kept"))
    assert exported.recipe.model == exported.base.name == tiny_llama.name
    assert exported.base.fingerprint == model.base.fingerprint
    assert (exported.recipe.data, exported.step(Healed).data) == (data.name, data.name)
    head = yaml.safe_load((tmp_path / "out" / "kept" / "README.md").read_text().split("---\n")[1])
    assert head["model-index"][0]["results"][0]["dataset"]["name"] == data.name


def test_a_standard_export_contains_no_local_path(tiny_llama, tmp_path) -> None:
    exported_texts = texts(
        lrcore.export(lrcore.load(str(tiny_llama)), tmp_path / "out", standard=True)
    )
    for text in exported_texts.values():
        assert str(tiny_llama.parent) not in text
        assert str(tmp_path) not in text


def test_a_local_checkpoint_stores_the_path_of_its_base(healed, tiny_llama, tmp_path) -> None:
    reloaded = lrcore.load(str(lrcore.save(healed[0], tmp_path / "kept")))
    assert reloaded.recipe.model == reloaded.base.name == str(tiny_llama)


def test_a_folder_with_local_paths_is_not_pushed(healed, tmp_path) -> None:
    folder = lrcore.save(healed[0], tmp_path / "kept")
    with pytest.raises(lrcore.InputError, match=r"lrcore\.json' contains local paths"):
        lrcore.push(folder, "me/small")


def test_strip_paths_shortens_paths_and_preserves_hub_ids(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out" / "small").mkdir(parents=True)
    values = {
        "hub": "org/model",
        "data": "wikitext:wikitext-2-raw-v1:test",
        "file": "/data/mine/text.jsonl",
        "home": "~/models/tiny",
        "folder": "out/small",
        "nested": [{"n": 3, "none": None, "name": "/data/tiny care 20%"}],
        "root": "/",
        "long": "word / " * 100,
    }
    assert json.loads(json.dumps(strip_paths(values))) == values | {
        "file": "text.jsonl",
        "home": "tiny",
        "folder": "small",
        "nested": [{"n": 3, "none": None, "name": "tiny care 20%"}],
    }
