"""Exports to transformers without custom code, and to vLLM: unsupported structures are multiplied
out or padded with zeros, which changes no logit; command and card list the changes.
"""

import json
import re

import pytest
import torch
import transformers
from elsewhere import TOKENS
from tiny_models import CONFIGS, copy_tokenizer, family_folder, noisy, sampled
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama.modeling_llama import LlamaAttention

import lrcore
from lrcore.checkpoints.export import export_for
from lrcore.cli import main
from lrcore.methods import METHODS

pytestmark = pytest.mark.one_in(3)

TARGETS = ("transformers-stock", "vllm")
FEW = ("llama-a3", "llama-care", "bloom-flap", "phi3-svd_llm", "mixtral-modegpt")
CASES = sampled(lambda family, method: f"{family}-{method}" in FEW)


def logits(network):
    with torch.inference_mode():
        return network(TOKENS).logits


@pytest.fixture(scope="module")
def dense(tiny_llama, tmp_path_factory):
    """Return a function that loads a dense model of a family."""

    def of(family):
        return lrcore.load(str(family_folder(family, tiny_llama, tmp_path_factory.mktemp(family))))

    return of


def compressed(model, data, method, **changes):
    how = {"samples": 2, "seq_len": 24, "ratio": 0.3} | changes
    return lrcore.compress(model, lrcore.Recipe(model.name, data=str(data), method=method, **how))


def loaded(folder, target):
    """Load an export with the class that its card names, without custom code if the target has
    none.
    """
    if target == "vllm":
        return lrcore.load(str(folder)).network
    card = (folder / "README.md").read_text(encoding="utf-8")
    loader = re.search(r"from transformers import (\w+)", card)[1]
    return getattr(transformers, loader).from_pretrained(folder, dtype=torch.float32)


def export_or_refusal(small, folder, target):
    """Return the export, or the message of a refusal."""
    try:
        return export_for(small, folder, target)
    except lrcore.InputError as error:
        return str(error)


@pytest.mark.parametrize(("family", "method"), CASES)
def test_exports_for_other_targets_give_the_same_logits(
    family, method, dense, story_file, tmp_path
) -> None:
    """Exceptions are biases that a family does not support, and gemma3n, in which the cutoff of
    neurons depends on their mean.
    """
    small = compressed(dense(family), story_file, method)
    for target in TARGETS:
        exported = export_or_refusal(small, tmp_path / target, target)
        if isinstance(exported, str):
            assert METHODS[method].adds_biases or family == "gemma3n_text", exported
            assert re.search("biases|the cutoff of neurons depends on their mean", exported)
            continue
        back = loaded(exported.path, target)
        assert torch.allclose(logits(back), logits(small.network), atol=1e-4)
        assert back.num_parameters() == exported.parameters


def test_the_command_and_the_card_list_the_changes_of_an_export(
    dense, story_file, tmp_path, capsys
) -> None:
    small = compressed(dense("llama"), story_file, "svd_llm")
    lrcore.save(small, tmp_path / "small")
    command = ["export", str(tmp_path / "small"), str(tmp_path / "out"), "--standard", "--json"]
    assert main(command) == 0
    output = json.loads(capsys.readouterr().out)
    size = dense("llama").size
    assert (output["parameters"], output["kv_values_per_token"]) == (
        size.parameters,
        size.kv_values,
    )
    assert output["notes"] == [
        "14 low-rank or quantized matrices were multiplied out",
        f"the folder has {size.parameters:,} parameters, the model {small.size.parameters:,}",
    ]
    card = (tmp_path / "out" / "README.md").read_text()
    assert all(f"- {clause}" in card for clause in output["notes"])
    assert f"{size.parameters:,} parameters" in card


def test_an_export_of_natively_supported_structures_has_no_notes(
    dense, story_file, tmp_path
) -> None:
    model = dense("llama")
    even = compressed(model, story_file, "a3", target="transformers-stock", ratio=0.2)
    pairs = compressed(model, story_file, "svd_llm", target="vllm")
    for small, target in ((even, "transformers-stock"), (pairs, "vllm")):
        exported = export_for(small, tmp_path / target, target)
        assert (exported.notes, exported.parameters) == ((), small.size.parameters)
        assert "What this export changed" not in (exported.path / "README.md").read_text()


def test_vllm_exports_preserve_low_rank_pairs_in_4_bits(dense, story_file, tmp_path) -> None:
    small = lrcore.quantize(compressed(dense("llama"), story_file, "svd_llm"), 4)
    exported = export_for(small, tmp_path / "vllm", "vllm")
    assert (exported.notes, exported.parameters) == ((), small.size.parameters)
    plain = export_for(small, tmp_path / "stock", "transformers-stock")
    assert plain.notes[0] == "14 low-rank or quantized matrices were multiplied out"
    assert torch.allclose(
        logits(loaded(plain.path, "transformers-stock")), logits(small.network), atol=1e-4
    )


@pytest.mark.parametrize("target", TARGETS)
def test_layers_with_fewer_heads_are_padded_to_the_largest_layer(
    target, tiny_llama, story_file, tmp_path
) -> None:
    """transformers requires a number of heads that divides the width."""
    config = CONFIGS["llama"] | {"hidden_size": 48, "num_attention_heads": 8}
    folder = tmp_path / "dense"
    noisy("llama", config | {"num_key_value_heads": 4}).save_pretrained(folder)
    copy_tokenizer(tiny_llama, folder)
    model = lrcore.load(str(folder))
    by_hand = {"0.heads": 2, "1.heads": 1}
    small = compressed(model, story_file, "llm_pruner", rank_overrides=by_hand)
    exported = export_for(small, tmp_path / target, target)
    back = AutoModelForCausalLM.from_pretrained(exported.path, trust_remote_code=target == "vllm")
    assert (back.config.num_attention_heads, back.config.num_key_value_heads) == (4, 2)
    assert all(type(layer.self_attn) is LlamaAttention for layer in back.model.layers)
    assert "1 layers have heads of zeros, up to 2 of keys and values" in exported.notes
    assert torch.allclose(logits(back), logits(small.network), atol=1e-4)


@pytest.mark.parametrize("family", ["bloom", "mpt"])
def test_models_with_fewer_layers_are_exported_as_standard_models(family, dense, tmp_path) -> None:
    short = lrcore.drop_layers(dense(family), [0])
    exported = export_for(short, tmp_path / "out", "transformers-stock")
    assert exported.notes == ()
    assert torch.equal(logits(loaded(exported.path, "transformers-stock")), logits(short.network))


@pytest.mark.parametrize("target", TARGETS)
def test_offloaded_models_give_the_same_export(target, tiny_llama, small_of, tmp_path) -> None:
    lrcore.save(small_of(tiny_llama, "a3", ratio=0.3), tmp_path / "small")
    files = []
    for offload in (False, True):
        small = lrcore.load(str(tmp_path / "small"), offload=offload)
        exported = export_for(small, tmp_path / str(offload), target)
        files.append((exported.path / "model.safetensors").read_bytes())
    assert files[0] == files[1]


def test_an_export_that_a_target_cannot_run_is_refused_with_the_reason(
    dense, story_file, tmp_path
) -> None:
    moved = compressed(dense("llama"), story_file, "transmla")
    for target, words in zip(TARGETS, ("is not a standard llama", "vLLM cannot run"), strict=True):
        with pytest.raises(lrcore.InputError, match=rf"{words}.*in layer 0 .*a decoupled"):
            export_for(moved, tmp_path / "out", target)
    sliced = lrcore.slice_hidden(dense("llama"), moved.recipe.with_(method="a3"))
    with pytest.raises(lrcore.InputError, match="stream is sliced"):
        export_for(sliced, tmp_path / "out", "vllm")
    with pytest.raises(lrcore.InputError, match="Did you mean 'vllm'"):
        export_for(moved, tmp_path / "out", "vlm")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("scaled", [False, True])
def test_a_standard_export_has_the_config_fields_of_transformers_4(scaled, dense, tmp_path) -> None:
    """Fields of transformers 4 for rotary positions and the tokenizer class do not change the model
    in the installed version.
    """
    model = dense("llama")
    rope = {"rope_type": "default", "rope_theta": 12345.0}
    rope_fields = {"rope_type": "linear", "factor": 2.0} if scaled else {}
    model.network.config.rope_parameters = rope | rope_fields
    out = lrcore.export(model, tmp_path / "out", standard=True)
    output, named = (
        json.loads((out / f"{layer}.json").read_text()) for layer in ("config", "tokenizer_config")
    )
    assert output["rope_theta"] == 12345.0
    assert output.get("rope_scaling", rope) == rope | rope_fields
    assert named["tokenizer_class"] == "PreTrainedTokenizerFast"
    back = AutoModelForCausalLM.from_pretrained(out)
    assert back.config.rope_parameters == rope | rope_fields
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer("Once upon a time").input_ids == model.tokenizer("Once upon a time").input_ids
