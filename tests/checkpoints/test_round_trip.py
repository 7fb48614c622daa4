"""Exports that transformers runs and saves: recorded attentions and hidden states, and saved
models, trained or not, that load with this package.
"""

import json
import math

import pytest
import torch
from elsewhere import TOKENS, elsewhere
from tiny_models import CONFIGS, copy_tokenizer, noisy
from transformers import AutoModelForCausalLM

import lrcore

MODELS = {
    "modegpt": ("modegpt", {}),
    "latentllm": ("latentllm", {}),
    "shared": ("care", {"joint": True}),
    "joint": ("latentllm", {"attention": "joint_qkv"}),
    "sliced": None,
}

SAVE = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokens = torch.arange(3, 43).view(2, 20)
for folder in json.loads(sys.argv[1]):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    how = {"trust_remote_code": True, "attn_implementation": "eager"}
    with torch.inference_mode():
        out = AutoModelForCausalLM.from_pretrained(folder, **how)(
            tokens, output_attentions=True, output_hidden_states=True
        )
        assert torch.allclose(out.logits, model(tokens).logits, atol=1e-4)
    assert [each.shape for each in out.attentions] == [(2, 4, 20, 20)] * 3
    assert [each.shape[:2] for each in out.hidden_states] == [(2, 20)] * 4
    for name in ("again", "tuned"):
        if name == "tuned":
            model.train().requires_grad_(True)
            step = torch.optim.AdamW(model.parameters(), lr=1e-3)
            for _ in range(2):
                model(tokens, labels=tokens).loss.backward()
                step.step()
                step.zero_grad()
        model.save_pretrained(f"{folder}-{name}")
        tokenizer.save_pretrained(f"{folder}-{name}")
"""


def logits(model):
    with torch.inference_mode():
        return model.network(TOKENS).logits


@pytest.fixture(scope="module")
def saved(tiny_llama, story_file, tmp_path_factory):
    """Return exported models by name, and the folder with the copies saved by transformers."""
    parent, dense = tmp_path_factory.mktemp("round-trip"), lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=2, seq_len=24, ratio=0.2)
    models = {
        name: lrcore.slice_hidden(dense, recipe)
        if how is None
        else lrcore.compress(dense, recipe.with_(method=how[0], options=how[1]))
        for name, how in MODELS.items()
    }
    folders = [str(lrcore.export(model, parent / name)) for name, model in models.items()]
    elsewhere(SAVE, json.dumps(folders), cwd=parent)
    return models, parent


@pytest.mark.parametrize("name", MODELS)
def test_an_export_saved_by_transformers_is_the_same_model(name, saved, story_file) -> None:
    models, parent = saved
    model, folder = models[name], parent / f"{name}-again"
    assert not (folder / "lrcore.json").exists()  # config.json contains the description
    reloaded = lrcore.load(folder)
    assert torch.equal(logits(reloaded), logits(model))
    assert reloaded.size == model.size
    measured = [
        lrcore.evaluate(loaded_model, str(story_file), samples=2, seq_len=24)
        for loaded_model in (model, reloaded)
    ]
    assert measured[0].perplexity == measured[1].perplexity
    if name != "sliced":
        assert torch.equal(logits(lrcore.load(folder, offload=True)), logits(model))


@pytest.mark.parametrize("name", MODELS)
def test_a_trained_export_is_measured_saved_and_loaded(name, saved, story_file, tmp_path) -> None:
    models, parent = saved
    tuned = lrcore.load(str(parent / f"{name}-tuned"))
    assert tuned.size.kv_values == models[name].size.kv_values
    assert not torch.equal(logits(tuned), logits(models[name]))
    result = lrcore.evaluate(tuned, str(story_file), samples=2, seq_len=24)
    assert math.isfinite(result.perplexity)
    saved_model = lrcore.load(str(lrcore.save(tuned, tmp_path / "kept")))
    assert torch.equal(logits(saved_model), logits(tuned))


@pytest.mark.parametrize("name", ["sliced", "shared"])
@pytest.mark.parametrize("tokens", [297, 320])
def test_an_export_with_a_resized_vocabulary_is_saved_and_loaded(
    name, tokens, saved, tmp_path
) -> None:
    models, parent = saved
    how = {"trust_remote_code": True}
    network = AutoModelForCausalLM.from_pretrained(parent / name, **how)
    network.resize_token_embeddings(tokens)
    network.save_pretrained(tmp_path)
    copy_tokenizer(parent / name, tmp_path)
    with torch.inference_mode():
        expected = network(TOKENS).logits
        actual = AutoModelForCausalLM.from_pretrained(tmp_path, **how)(TOKENS).logits
    reloaded = lrcore.load(tmp_path)
    assert expected.shape[-1] == tokens
    assert torch.equal(actual, expected)
    assert torch.equal(logits(reloaded), expected)
    memory = lrcore.load(network, models[name].tokenizer)
    assert torch.equal(logits(memory), expected)


SAVE_ONLY = """
import json, sys
from transformers import AutoModelForCausalLM
for folder in json.loads(sys.argv[1]):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    model.save_pretrained(f"{folder}-again")
    AutoModelForCausalLM.from_pretrained(f"{folder}-again", trust_remote_code=True)
"""


def test_shared_weights_of_layers_and_projections_are_saved_once(
    saved, tiny_llama, tmp_path
) -> None:
    """transformers ties parameters only, and sorts the layers in a config by name."""
    models, _ = saved
    fields = CONFIGS["llama"] | {"num_hidden_layers": 11}
    noisy("llama", fields).save_pretrained(tmp_path / "deep")
    copy_tokenizer(tiny_llama, tmp_path / "deep")
    deep = lrcore.load(tmp_path / "deep")
    made = {f"{name}-4": lrcore.quantize(models[name], 4, 16) for name in ("shared", "joint")}
    made["bases"] = lrcore.share_bases(deep, models["shared"].recipe, group=3)
    folders = [lrcore.export(model, tmp_path / name) for name, model in made.items()]
    elsewhere(SAVE_ONLY, json.dumps(list(map(str, folders))), cwd=tmp_path)
    for folder, model in zip(folders, made.values(), strict=True):
        copy_tokenizer(tiny_llama, reloaded := folder.with_name(f"{folder.name}-again"))
        assert torch.equal(logits(lrcore.load(reloaded)), logits(model))


def test_a_config_without_layers_is_reported(saved, tmp_path) -> None:
    _, parent = saved
    config = json.loads((parent / "modegpt-again" / "config.json").read_text()) | {"lowrank": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(lrcore.InputError, match="has no compressed layers"):
        lrcore.load(tmp_path)
