"""Pruning of layers: the selection, and results in memory and on disk."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from tiny_models import FAMILIES, tiny
from transformers import AutoModelForCausalLM

import lrcore
from lrcore.cli import main
from lrcore.compression.steps.layer_pruning.depth import skip_layers, without_layers
from lrcore.evaluation.local_errors import local_errors
from lrcore.models.architectures import ARCHITECTURES, attention_kernel, decoder_layers
from lrcore.models.config import auto_class
from lrcore.recipes.history import LayersDropped
from lrcore.system.errors import InputError

pytestmark = pytest.mark.one_in(3)

TOKENS = torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(5))
# index of the layer with a different type; dropping it raises
MIXED = {
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "ernie4_5_moe", "qwen3_next", "jamba"), 0),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), 1),
}
PRUNABLE = [family for family in FAMILIES if family.id != "gemma3n_text"]
ONLY_ATTENTION = {  # the layer; two layers of LFM 3 have attention
    name: 2 if name == "nemotron_h" else 1
    for name, row in ARCHITECTURES.items()
    if row.mixer and name != "lfm3"
}


def logits(network, tokens=TOKENS, **kwargs):
    with torch.inference_mode():
        return network(input_ids=tokens, **kwargs).logits


@pytest.mark.parametrize("family", PRUNABLE)
@pytest.mark.parametrize("gone", [0, 1])
def test_network_without_a_layer_loads_as_its_family(family, gone, tmp_path):
    network = tiny(family)
    before = logits(network)
    refusals = {MIXED.get(family): "have different types", ONLY_ATTENTION.get(family): "No layer"}
    if gone in refusals:
        with pytest.raises(InputError, match=refusals[gone]):
            without_layers(network, {gone})
        return
    with skip_layers(network, {gone}):
        skipped = logits(network)
    short = without_layers(network, {gone})
    assert torch.equal(logits(short), skipped)
    assert not torch.equal(skipped, before)
    assert torch.equal(logits(network), before)  # the original network is unchanged
    assert len(decoder_layers(network)) == len(decoder_layers(short)) + 1
    first = short(input_ids=TOKENS[:, :20], use_cache=True)
    inputs: dict = {"past_key_values": first.past_key_values}
    if family == "bamba":  # it counts each call from 0 without positions
        inputs["position_ids"] = torch.arange(20, TOKENS.shape[1]).unsqueeze(0)
    remaining_logits = logits(short, TOKENS[:, 20:], **inputs)
    assert torch.allclose(remaining_logits, skipped[:, 20:], atol=1e-4 * float(skipped.abs().max()))
    short.save_pretrained(tmp_path)
    back = (
        auto_class(short.config)
        .from_pretrained(tmp_path, attn_implementation=attention_kernel(short.config))
        .eval()
    )
    assert torch.equal(logits(back), skipped)


@pytest.fixture
def requested(tiny_llama, story_file):
    recipe = lrcore.Recipe(model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32)
    return lrcore.load(str(tiny_llama)), recipe


def test_influence_criterion_prunes_the_layers_of_lowest_influence(requested):
    model, recipe = requested
    influence = lrcore.calibrate(model, recipe).block_influence
    gone = lrcore.prune_layers(model, recipe, 2).step(LayersDropped).gone
    assert list(gone) == sorted(range(3), key=influence.__getitem__)[:2]


def test_loss_criterion_prunes_the_layer_with_the_lowest_loss_in_each_step(requested):
    model, recipe = requested
    tokens = lrcore.calibrate(model, recipe).tokens

    def loss(gone: set[int]) -> float:
        network = copy.deepcopy(model.network)
        for index in gone:
            decoder_layers(network)[index].forward = lambda hidden_states, *_args, **_kwargs: (
                hidden_states
            )
        scores = logits(network, tokens)[:, :-1].flatten(0, 1)
        return float(torch.nn.functional.cross_entropy(scores, tokens[:, 1:].flatten()))

    expected: list[int] = []
    for _ in range(2):
        expected.append(
            min(set(range(3)) - set(expected), key=lambda index: loss({*expected, index}))
        )
    step = lrcore.prune_layers(model, recipe, 2, criterion="loss").step(LayersDropped)
    assert (step.by, step.gone, step.of) == ("loss", tuple(expected), 3)
    assert step.calibration["fingerprint"]


def test_loss_criterion_can_prune_the_first_layer(requested):
    model, recipe = requested
    network = copy.deepcopy(model.network)
    with torch.no_grad():
        decoder_layers(network)[0].self_attn.o_proj.weight.mul_(100)  # worse than no layer
    chosen = lrcore.prune_layers(replace(model, network=network), recipe, 2, criterion="loss")
    assert chosen.step(LayersDropped).gone[0] == 0


def test_pruned_model_is_saved_compressed_and_exported(requested, tmp_path):
    model, recipe = requested
    short = lrcore.prune_layers(model, recipe, 1)
    assert short.size.kv_values * 3 == model.size.kv_values * 2
    assert short.account.to_dict()["parameters"] == short.size.parameters < model.size.parameters
    back = lrcore.load(str(lrcore.save(short, tmp_path / "saved")))
    assert torch.equal(logits(back.network), logits(short.network))
    small = lrcore.compress(back, recipe.with_(method="a3", ratio=0.2))
    assert {slot.layer for slot in small.ranks} == {0, 1}
    folder = lrcore.export(back, tmp_path / "stock", standard=True)
    assert not list(folder.glob("*.py"))
    assert torch.equal(
        logits(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)),
        logits(short.network),
    )
    with pytest.raises(InputError, match="is not a compressed"):
        local_errors(model, short, recipe.data, samples=2, seq_len=32)


@pytest.mark.parametrize(
    ("layers", "by", "words"),
    [
        (0, "influence", "at least 1"),
        (3, "influence", "at least 1"),
        (1, "los", "Did you mean|did you mean"),
    ],
)
def test_invalid_settings_raise(requested, layers, by, words):
    with pytest.raises(InputError, match=words):
        lrcore.prune_layers(*requested, layers, criterion=by)


def test_prune_layers_command_equals_the_function(requested, story_file, tmp_path, capsys):
    model, recipe = requested
    message = [
        "--data",
        str(story_file),
        "--samples",
        "4",
        "--seq-len",
        "32",
        "--layers",
        "1",
        "--criterion",
        "loss",
        "--json",
    ]
    assert main(["prune-layers", recipe.model, str(tmp_path / "out"), *message]) == 0
    output, made = (
        json.loads(capsys.readouterr().out),
        lrcore.prune_layers(model, recipe, 1, criterion="loss"),
    )
    assert output["layers_pruned"] == made.step(LayersDropped).fields_dict()
    assert torch.equal(logits(lrcore.load(output["out"]).network), logits(made.network))


def test_compressed_and_offloaded_models_raise(requested):
    model, recipe = requested
    with pytest.raises(InputError, match="Drop layers of the dense model"):
        lrcore.prune_layers(lrcore.compress(model, recipe.with_(method="a3", ratio=0.2)), recipe, 1)
    with pytest.raises(InputError, match="offload"):
        lrcore.prune_layers(lrcore.load(recipe.model, offload=True), recipe, 1)


def test_drop_layers_equals_pruning_of_the_same_layers(requested):
    model, recipe = requested
    gone = lrcore.prune_layers(model, recipe, 2).step(LayersDropped).gone
    named = lrcore.drop_layers(model, gone)
    assert named.step(LayersDropped) == LayersDropped("hand", gone, 3)
    assert torch.equal(logits(named.network), logits(lrcore.prune_layers(model, recipe, 2).network))
    with pytest.raises(InputError, match="keep at least 1"):
        lrcore.drop_layers(model, [0, 1, 2])
