"""Exports that load without this package, give bit-identical logits, and have a model card."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from elsewhere import TOKENS, elsewhere, loaded_elsewhere
from safetensors.torch import load_file
from tiny_models import family_folder

import lrcore
from lrcore.checkpoints.portable import LEFT_OUT, modeling_source
from lrcore.checkpoints.standard.standard_fit import standard_fit
from lrcore.models.architectures import ARCHITECTURES
from lrcore.recipes.history import StandardFit


def logits(model):
    with torch.inference_mode():
        return model.network(TOKENS).logits


@pytest.fixture(scope="module")
def dense(tiny_llama, tmp_path_factory):
    """Return a function that writes a dense tiny model of a family."""

    def make(family):
        return family_folder(family, tiny_llama, tmp_path_factory.mktemp(family))

    return make


def compressed(folder, data, method="fused", **changes):
    recipe = lrcore.Recipe(
        model=str(folder),
        data=str(data),
        samples=4,
        seq_len=32,
        ratio=changes.pop("ratio", 0.2),
        method=method,
        **changes,
    )
    return lrcore.compress(lrcore.load(str(folder)), recipe)


PIPELINE = """
import pickle
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
write = pipeline("text-generation", model=sys.argv[1], trust_remote_code=True, device="cpu")
written = write("Once upon", max_new_tokens=5, do_sample=False)
assert written[0]["generated_text"].startswith("Once upon")
tokens = torch.arange(3, 23)[None]

def load(**how):
    return AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True, **how)

half = load(dtype=torch.bfloat16)
assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
assert torch.isfinite(half(tokens).logits).all()
plain, fast = load(attn_implementation="eager"), load()
assert torch.allclose(plain(tokens).logits, fast(tokens).logits, atol=1e-4)
copied = pickle.loads(pickle.dumps(fast))
assert torch.equal(copied(tokens).logits, fast(tokens).logits)
assert AutoTokenizer.from_pretrained(sys.argv[1]).chat_template == "{{ messages[0].content }}"
assert fast.generation_config.max_new_tokens == 7
"""


def test_pipeline_dtype_eager_attention_template_and_generation_config_work(
    dense, story_file, tmp_path
) -> None:
    small = compressed(dense("llama"), story_file)
    small.tokenizer.chat_template = "{{ messages[0].content }}"
    small.network.generation_config.max_new_tokens = 7
    lrcore.export(small, tmp_path / "out")
    elsewhere(PIPELINE, str(tmp_path / "out"), cwd=tmp_path)


def test_a_sharded_export_can_be_loaded_as_a_checkpoint(dense, story_file, tmp_path) -> None:
    small = compressed(dense("qwen2"), story_file)
    lrcore.export(small, tmp_path / "out", shard="20KB")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert torch.equal(logits(lrcore.load(str(tmp_path / "out"))), logits(small))
    assert torch.equal(loaded_elsewhere([tmp_path / "out"], tmp_path)[0], logits(small))


def test_the_model_card_has_license_perplexity_recipe_and_ranks(
    dense, story_file, tmp_path
) -> None:
    folder = dense("llama")
    (folder / "README.md").write_text(
        "---\nlicense: other\nlicense_name: tiny-licence\ntags: [x]\n---\n# Tiny\n"
    )
    small = compressed(folder, story_file)
    result = lrcore.evaluate(small, str(story_file), samples=2, seq_len=32).to_dict()
    lrcore.save(small, tmp_path / "kept")
    lrcore.export(lrcore.load(str(tmp_path / "kept")), tmp_path / "out", [result])
    _, meta, text = (tmp_path / "out" / "README.md").read_text().split("---\n", 2)
    assert "from transformers import AutoModelForCausalLM, AutoTokenizer" in text
    fields = yaml.safe_load(meta)
    assert (fields["license"], fields["license_name"], fields["library_name"]) == (
        "other",
        "tiny-licence",
        "transformers",
    )
    metric = fields["model-index"][0]["results"][0]["metrics"][0]
    assert metric == {"type": "perplexity", "value": round(result["perplexity"], 4)}
    assert "method: fused" in text
    assert f"{small.size.parameters:,} parameters" in text
    assert "| 1 | mlp |" in text
    assert "base_model" not in fields  # a folder is not a model id of the hub


def test_the_card_of_a_padded_export_names_the_model_of_its_sizes(dense, story_file, tmp_path):
    small = compressed(dense("llama"), story_file)
    padded = lrcore.export(small, tmp_path / "standard", standard=True)
    with_code = lrcore.export(small, tmp_path / "code")
    cards = [(Path(folder) / "README.md").read_text() for folder in (padded, with_code)]
    assert "padded with zeros" in cards[0]
    assert ["| this model |" in card for card in cards] == [False, True]


def test_the_code_of_an_export_is_short_and_independent_of_lrcore(tiny_llama) -> None:
    source = modeling_source(lrcore.load(str(tiny_llama)).network)
    compile(source, "modeling_lowrank.py", "exec")
    assert len(source.splitlines()) < 1600
    assert "lrcore" not in source
    assert not any(f"def {name}(" in source for name in (*LEFT_OUT, "architecture_of"))


STOCK = (
    "llama",
    "qwen2",
    "phi3",
    "gpt2",
    "opt",
    "gpt_neox",
    "gemma3_text",
    "starcoder2",
    "gpt_neo",
)


@pytest.mark.parametrize("family", STOCK)
def test_uniform_mlp_ranks_give_a_standard_model_without_code(
    family, dense, story_file, tmp_path
) -> None:
    model = lrcore.load(str(dense(family)))
    recipe = lrcore.Recipe(
        model=model.name, data=str(story_file), samples=4, seq_len=32, ratio=0.1, method="modegpt"
    )
    factors = lrcore.prepare(model, recipe)
    plan = lrcore.allocate(factors, recipe)
    fit = standard_fit(model, plan)
    assert fit.reasons[0].endswith("below full rank")
    even = lrcore.allocate(
        factors,
        recipe.with_(
            rank_overrides={f"{layer}.{name}": rank for (layer, name), rank in fit.ranks.items()}
        ),
    )
    assert even.ranks == fit.ranks
    assert standard_fit(model, even) == StandardFit(True, (), fit.ranks)
    assert even.summary()["parameters"] <= plan.summary()["parameters"]
    small = lrcore.compress(model, recipe, factors, even)
    lrcore.export(small, tmp_path / "out", standard=True)
    assert not list((tmp_path / "out").glob("*.py"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "auto_map" not in config
    assert config[ARCHITECTURES[family].width] == fit.ranks[0, "mlp"]
    back = lrcore.load(str(tmp_path / "out"))
    assert torch.allclose(logits(back), logits(small), atol=1e-5 * float(logits(small).abs().max()))
    assert back.size.parameters == small.size.parameters


def test_added_biases_are_standard_only_if_the_family_supports_them(
    dense, story_file, tmp_path
) -> None:
    for family, possible in (("llama", True), ("qwen2", False)):
        model = lrcore.load(str(dense(family)))
        recipe = lrcore.Recipe(
            model=model.name,
            data=str(story_file),
            samples=4,
            seq_len=32,
            ratio=0.1,
            method="fused",
            refit="off",
        )
        overrides = {
            f"{layer}.{name}": rank
            for layer in (0, 1)
            for name, rank in (("qk", 8), ("ov", 8), ("mlp", 30))
        }
        factors = lrcore.prepare(model, recipe)
        plan = lrcore.allocate(factors, recipe.with_(rank_overrides=overrides))
        assert standard_fit(model, plan).qualifies == possible
        small = lrcore.compress(model, recipe, factors, plan)
        if possible:
            lrcore.export(small, tmp_path / family, standard=True)
            assert torch.allclose(
                logits(lrcore.load(str(tmp_path / family))), logits(small), atol=1e-5
            )
        else:
            with pytest.raises(
                lrcore.InputError, match="biases that a qwen2 layer does not support"
            ):
                lrcore.export(small, tmp_path / family, standard=True)
            assert not (tmp_path / family).exists()


def test_the_command_exports_a_folder_or_a_run_with_its_measurements(
    dense, story_file, tmp_path, capsys
) -> None:
    from lrcore.cli import main

    run = tmp_path / "run"
    small = compressed(dense("llama"), story_file)
    lrcore.save(small, run / "checkpoint")
    result = {"perplexity": 5.0, "protocol": {"data": "stories"}, "tokens": 10}
    (run / "report.json").write_text(json.dumps({"evaluations": [result]}))
    (tmp_path / "more.json").write_text(json.dumps(result | {"perplexity": 6.0}))
    assert (
        main(
            [
                "export",
                str(run),
                str(tmp_path / "out"),
                "--result",
                str(tmp_path / "more.json"),
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["results"] == 2
    card = (tmp_path / "out" / "README.md").read_text()
    assert "value: 5.0" in card
    assert "value: 6.0" in card
    (tmp_path / "more.json").write_text("{}")
    assert (
        main(["export", str(run), str(tmp_path / "new"), "--result", str(tmp_path / "more.json")])
        == 2
    )
    assert "has no evaluation" in capsys.readouterr().err


def test_the_exported_reference_model_has_the_same_logits(reference, tmp_path) -> None:
    model = lrcore.load(str(reference / "models/stories260K"))
    lrcore.export(model, tmp_path / "out")
    assert torch.equal(loaded_elsewhere([tmp_path / "out"], tmp_path)[0], logits(model))
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert stored.keys() <= model.network.state_dict().keys()


def test_a_method_on_matrices_has_one_reason_not_to_fit(tiny_llama, story_file):
    recipe = lrcore.Recipe(
        model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.2, method="svd"
    )
    model = lrcore.load(recipe.model)
    plan = lrcore.allocate(lrcore.prepare(model, recipe), recipe)
    assert len(standard_fit(model, plan).reasons) == 1
