"""Model types of compressed checkpoints: transformers refuses to load one without its code, instead
of building the dense network with random weights.
"""

import json
from pathlib import Path

import pytest
import torch
from elsewhere import TOKENS, elsewhere
from tiny_models import family_folder
from transformers import AutoModelForCausalLM, AutoTokenizer

import lrcore
from lrcore.models.architectures import ARCHITECTURES

METHODS = ("svd_llm", "modegpt", "latentllm", "care")


def compressed(folder, data, method):
    recipe = lrcore.Recipe(
        model=str(folder), data=str(data), samples=4, seq_len=32, ratio=0.2, method=method
    )
    return lrcore.compress(lrcore.load(str(folder)), recipe)


@pytest.fixture(scope="module")
def models(tiny_llama, story_file):
    """Return models by name: compressed by several methods, and quantized to 4 bits."""
    made = {method: compressed(tiny_llama, story_file, method) for method in METHODS}
    return made | {"quantised": lrcore.quantize(lrcore.load(str(tiny_llama)), bits=4)}


def logits(model):
    with torch.inference_mode():
        return model.network(TOKENS).logits


REFUSED = """
import json, sys
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
for folder in json.loads(sys.argv[1]):
    for how in ({}, {"trust_remote_code": False}):
        for loader in (AutoModelForCausalLM, AutoConfig):
            try:
                loader.from_pretrained(folder, **how)
            except ValueError as error:
                assert "trust_remote_code=True" in str(error), (folder, error)
            else:
                raise AssertionError(f"{folder} loads without its code")
    plain = AutoTokenizer.from_pretrained(folder)
    trusted = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert plain("Once upon").input_ids == trusted("Once upon").input_ids
    assert type(plain) is type(trusted)
"""


def test_an_export_is_refused_without_trust_remote_code(models, tmp_path) -> None:
    for name, model in models.items():
        lrcore.export(model, tmp_path / name)
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["model_type"] == "lowrank_llama"
    elsewhere(REFUSED, json.dumps([str(tmp_path / name) for name in models]), cwd=tmp_path)


def test_a_checkpoint_is_refused_by_transformers_and_loaded_by_lrcore(models, tmp_path) -> None:
    for name, model in models.items():
        folder = lrcore.save(model, tmp_path / name)
        with pytest.raises(ValueError, match="model type `lowrank_llama`"):
            AutoModelForCausalLM.from_pretrained(folder)
        back = lrcore.load(str(folder))
        assert torch.equal(logits(back), logits(model))
        assert type(back.network.config) is type(model.network.config)
        assert type(back.tokenizer) is type(model.tokenizer)
        text = "Once upon a time"
        ids = model.tokenizer(text).input_ids
        assert back.tokenizer(text).input_ids == ids
        assert AutoTokenizer.from_pretrained(folder)(text).input_ids == ids


def test_a_dense_checkpoint_is_a_standard_transformers_model(tiny_llama, tmp_path) -> None:
    model = lrcore.load(str(tiny_llama))
    folder = lrcore.save(model, tmp_path / "dense")
    standard = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        assert torch.allclose(standard(TOKENS).logits, logits(model), atol=1e-5)


def test_exports_and_checkpoints_with_the_model_type_of_the_family_still_load(
    models, tmp_path
) -> None:
    model = models["svd_llm"]
    for folder in (lrcore.save(model, tmp_path / "kept"), lrcore.export(model, tmp_path / "out")):
        config = json.loads((folder / "config.json").read_text()) | {"model_type": "llama"}
        config.get("auto_map", {}).pop("AutoConfig", None)
        (folder / "config.json").write_text(json.dumps(config))
        assert torch.equal(logits(lrcore.load(str(folder))), logits(model))


def test_a_model_made_from_an_export_refers_to_no_missing_code(
    models, tiny_llama, tmp_path
) -> None:
    small = lrcore.load(str(lrcore.export(models["modegpt"], tmp_path / "out")))
    dense = lrcore.load(str(lrcore.export(lrcore.load(str(tiny_llama)), tmp_path / "dense-code")))
    lrcore.save(lrcore.quantize(small, bits=8), tmp_path / "eight")
    lrcore.export(dense, tmp_path / "standard", standard=True)
    for name, kind in (("eight", "lowrank_llama"), ("standard", "llama")):
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert not config.keys() & {"auto_map", "lowrank"}
        assert (config["model_type"], config["architectures"]) == (kind, ["LlamaForCausalLM"])


@pytest.mark.parametrize("family", ["mixtral", "gpt2", "gemma3_text"])
def test_compressed_models_of_other_families_have_their_model_type(
    family, tiny_llama, story_file, tmp_path
) -> None:
    assert family in ARCHITECTURES
    small = compressed(family_folder(family, tiny_llama, tmp_path / "dense"), story_file, "svd_llm")
    folder = lrcore.export(small, tmp_path / "out")
    assert json.loads(Path(folder, "config.json").read_text())["model_type"] == f"lowrank_{family}"
    assert torch.equal(logits(lrcore.load(str(folder))), logits(small))
    elsewhere(REFUSED, json.dumps([str(folder)]), cwd=tmp_path)
