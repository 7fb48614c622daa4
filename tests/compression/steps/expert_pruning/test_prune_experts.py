"""Pruning and merging of experts: selection, results, saving and export."""

import copy
import itertools
import json
from contextlib import ExitStack

import pytest
import torch
from tiny_models import CONFIGS, family_folder, tiny
from torch.nn.functional import cross_entropy, linear, one_hot
from transformers import AutoModelForCausalLM

import lrcore
from lrcore.cli import main
from lrcore.compression.steps.chain import TRANSFORMS, StepContext
from lrcore.compression.steps.expert_pruning.merging import match_neurons, merge_experts, outputs
from lrcore.compression.steps.expert_pruning.mixtures import (
    expert_count,
    mixture_of,
    retain_experts,
    route_to,
    set_expert_count,
)
from lrcore.compression.steps.step_settings import ExpertPruning
from lrcore.layers.layer import MLP, Linear
from lrcore.models.architectures import ARCHITECTURES, attention_kernel, decoder_layers
from lrcore.models.config import auto_class
from lrcore.models.layers import clone, read_layer
from lrcore.recipes.history import DROPPED, ExpertsPruned
from lrcore.system.errors import InputError
from lrcore.system.progress import silent

FAMILIES = [  # without families that group their experts
    name for name, row in ARCHITECTURES.items() if row.experts and "n_group" not in CONFIGS[name]
]
TOKENS = torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(5))


def logits(network, tokens=TOKENS, **kwargs):
    with torch.inference_mode():
        return network(input_ids=tokens, **kwargs).logits


def close(a, b) -> bool:
    return torch.allclose(a, b, atol=1e-5 * float(b.abs().max()))


def keep_experts(network, retained):
    """Return a copy of the network with only the retained experts."""
    small = clone(network)
    for index in range(len(decoder_layers(small))):
        mixture = mixture_of(small, index)
        if mixture is not None:
            retain_experts(mixture, retained, mixture.rows())
    set_expert_count(small, len(retained))
    return small


@pytest.mark.parametrize("family", FAMILIES)
def test_network_with_fewer_experts_loads_as_its_family(family, tmp_path):
    network, retained = tiny(family), [0, 2, 3]
    before = logits(network)
    small = keep_experts(network, retained)
    with ExitStack() as stack:
        for index in range(len(decoder_layers(network))):
            if (mixture := mixture_of(network, index)) is not None:
                stack.enter_context(route_to(mixture, retained, mixture.rows()))
        tried = logits(network)
    assert close(logits(small), tried)
    assert not close(logits(small), before)
    assert torch.equal(logits(network), before)  # the original network is unchanged
    assert (expert_count(network), expert_count(small)) == (4, 3)
    small.save_pretrained(tmp_path)
    back = (
        auto_class(small.config)
        .from_pretrained(tmp_path, attn_implementation=attention_kernel(small.config))
        .eval()
    )
    assert close(logits(back), logits(small))
    assert back.num_parameters() == small.num_parameters() < network.num_parameters()
    # transformers continues the states of Jamba by single tokens only
    start = TOKENS.shape[1] - 1 if family == "jamba" else 20
    first = small(input_ids=TOKENS[:, :start], use_cache=True)
    remaining_logits = logits(small, TOKENS[:, start:], past_key_values=first.past_key_values)
    assert torch.allclose(remaining_logits, logits(small)[:, start:], atol=1e-4)


def test_routing_around_experts_is_undone_on_exit():
    network = tiny("mixtral")
    before, mixture = logits(network), mixture_of(network, 1)
    with route_to(mixture, [1, 3], mixture.rows()):
        assert not torch.equal(logits(network), before)
    assert torch.equal(logits(network), before)


@pytest.fixture(scope="module")
def requested(tiny_llama, story_file, tmp_path_factory):
    folder = family_folder("mixtral", tiny_llama, tmp_path_factory.mktemp("moe") / "mixtral")
    recipe = lrcore.Recipe(model=str(folder), data=str(story_file), samples=4, seq_len=32)
    return lrcore.load(str(folder)), recipe


def test_activation_criterion_prunes_experts_with_the_smallest_outputs(requested):
    """Compare with a mean over tokens, computed with the inputs of each layer's experts."""
    model, recipe = requested
    tokens, seen = lrcore.calibrate(model, recipe).tokens, {}
    handles = [
        mixture_of(model.network, index).experts.register_forward_pre_hook(
            lambda _module, args, index=index: seen.update({index: args})
        )
        for index in range(2)
    ]
    logits(model.network, tokens)
    for handle in handles:
        handle.remove()
    step = lrcore.prune_experts(model, recipe, ExpertPruning(1)).step(ExpertsPruned)
    for index, (x, chosen, weights) in seen.items():
        scores = []
        for number, mlp in enumerate(read_layer(model.network, index).experts.mlps):
            gate, up = (linear(x, p.weight) for p in (mlp.gate, mlp.up))
            out = linear(torch.nn.functional.silu(gate) * up, mlp.down.weight)
            weight = (one_hot(chosen, 4)[..., number] * weights).sum(-1)
            scores.append(float((weight * out.norm(dim=-1)).sum() / (weight > 0).sum()))
        weakest = min(range(4), key=scores.__getitem__)
        assert step.pruned[index] == (index, weakest, DROPPED)
    assert (step.by, step.of, step.experts, step.merged) == ("activation", 4, 1, 0)
    assert step.calibration["fingerprint"]


def test_loss_criterion_prunes_the_expert_with_the_lowest_loss_in_each_step(requested):
    model, recipe = requested
    tokens = lrcore.calibrate(model, recipe).tokens

    def loss(gone) -> float:
        network = copy.deepcopy(model.network)
        for index in range(2):
            mixture, retained = (
                mixture_of(network, index),
                [e for e in range(4) if (index, e) not in gone],
            )
            retain_experts(mixture, retained, mixture.rows())
        scores = logits(network, tokens)[:, :-1].flatten(0, 1)
        return float(cross_entropy(scores, tokens[:, 1:].flatten()))

    expected: list[tuple[int, int]] = []
    for index, _ in itertools.product(range(2), range(2)):
        remaining = [(index, e) for e in range(4) if (index, e) not in expected]
        expected.append(min(remaining, key=lambda source: loss({*expected, source})))
    pruning = ExpertPruning(2, criterion="loss")
    small = lrcore.prune_experts(model, recipe, pruning)
    step = small.step(ExpertsPruned)
    assert step.pruned == tuple((*source, DROPPED) for source in expected)
    scores = logits(small.network, tokens)[:, :-1].flatten(0, 1)
    assert float(cross_entropy(scores, tokens[:, 1:].flatten())) == pytest.approx(
        loss(set(expected)), abs=1e-5
    )


def test_experts_are_merged_if_this_lowers_the_loss(requested, tiny_llama, tmp_path):
    """Two experts are equal up to the order of neurons, with equal rows in the router.

    Merging them does not change the model.
    """
    model, recipe = requested
    network = copy.deepcopy(model.network)
    order = torch.randperm(48, generator=torch.Generator().manual_seed(1))
    for index in range(2):
        mixture = mixture_of(network, index)
        with torch.no_grad():
            gate_up, down = mixture.experts.gate_up_proj, mixture.experts.down_proj
            gate_up[3] = gate_up[1].view(2, 48, -1)[:, order].flatten(0, 1)
            down[3] = down[1][:, order]
            mixture.router.weight[3] = mixture.router.weight[1] + 1e-4
    network.save_pretrained(tmp_path / "twins")
    for file in tiny_llama.glob("*token*"):
        (tmp_path / "twins" / file.name).write_bytes(file.read_bytes())
    twins = lrcore.load(str(tmp_path / "twins"))
    before = logits(twins.network)
    small = lrcore.prune_experts(twins, recipe, ExpertPruning(2, criterion="loss", merge=True))
    dropped = lrcore.prune_experts(twins, recipe, ExpertPruning(2, criterion="loss"))
    assert torch.equal(logits(twins.network), before)
    tokens = lrcore.calibrate(twins, recipe).tokens
    losses = [
        float(
            cross_entropy(
                logits(source.network, tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
            )
        )
        for source in (small, dropped)
    ]
    assert losses[0] < losses[1]
    step = small.step(ExpertsPruned)
    assert step.merged > 0
    assert all(into == DROPPED or into != number for _, number, into in step.pruned)


def test_merging_aligns_the_neurons_of_permuted_experts():
    generator = torch.Generator().manual_seed(2)
    gate, up, down = (torch.randn(12, 8, generator=generator) for _ in range(3))
    order = torch.randperm(12, generator=generator)
    bias = torch.randn(12, generator=generator)
    source = MLP(Linear(up, bias), Linear(down.T), Linear(gate))
    target = MLP(Linear(up[order], bias[order]), Linear(down[order].T), Linear(gate[order]))
    mean = merge_experts(source, target, 0.3)
    for name, p in target.matrices().items():
        assert torch.allclose(mean[name][0], p.weight)
    assert torch.allclose(mean["up"][1], target.up.bias)
    x = torch.randn(5, 8, generator=generator)
    assert torch.allclose(outputs(source, x), outputs(target, x), atol=1e-4)


def test_neurons_are_matched_by_largest_product_first():
    generator = torch.Generator().manual_seed(3)
    rows, targets = torch.randn(2, 9, 4, generator=generator)
    products, expected = rows @ targets.mT, {}
    for _ in range(9):
        row, target = divmod(int(products.argmax()), 9)
        expected[target] = row
        products[row], products[:, target] = float("-inf"), float("-inf")
    assert match_neurons(rows, targets).tolist() == [expected[target] for target in range(9)]


def test_pruned_model_is_saved_compressed_and_exported(requested, tmp_path):
    model, recipe = requested
    small = lrcore.prune_experts(model, recipe, ExpertPruning(1))
    expert = 3 * 32 * 48 + 32  # its matrices and its row of the router
    assert small.size.parameters == model.size.parameters - 2 * expert
    assert small.account.to_dict()["parameters"] == small.size.parameters
    back = lrcore.load(str(lrcore.save(small, tmp_path / "saved")))
    assert back.history == small.history
    assert close(logits(back.network), logits(small.network))
    assert lrcore.generate(back, "Once", max_new_tokens=4)
    recompressed = lrcore.compress(back, recipe.with_(method="a3", ratio=0.2))
    assert recompressed.size.parameters < small.size.parameters
    with pytest.raises(InputError, match="ranks belong to its current experts"):
        lrcore.prune_experts(recompressed, recipe, ExpertPruning(1))
    folder = lrcore.export(back, tmp_path / "stock", standard=True)
    assert not list(folder.glob("*.py"))
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert loaded.config.num_local_experts == 3
    assert close(logits(loaded), logits(small.network))
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "1 of 4 routed experts were removed" in card


def test_prune_experts_command_equals_the_function(requested, tmp_path, capsys):
    model, recipe = requested
    words = (
        f"--data {recipe.data} --samples 4 --seq-len 32 --experts 1 --criterion loss --merge --json"
    )
    assert main(["prune-experts", recipe.model, str(tmp_path / "out"), *words.split()]) == 0
    output = json.loads(capsys.readouterr().out)
    pruning = ExpertPruning(1, criterion="loss", merge=True)
    made = lrcore.prune_experts(model, recipe, pruning)
    assert output["experts_pruned"] == made.step(ExpertsPruned).fields_dict()
    assert close(logits(lrcore.load(output["out"]).network), logits(made.network))


def test_prune_experts_is_a_step_of_a_chain(requested):
    model, recipe = requested
    step = TRANSFORMS["prune-experts"].step("prune-experts", {"experts": 1}, recipe)
    assert (str(step.label), step.settings) == (
        "prune-experts 1 activation",
        ExpertPruning(1),
    )
    made = step.apply(model, StepContext(silent, None, None))
    direct = lrcore.prune_experts(model, recipe, ExpertPruning(1))
    assert made.history == direct.history


def test_invalid_pruning_raises(requested, tiny_llama):
    model, recipe = requested
    for pruning, words in (
        (ExpertPruning(3), "Drop at most 2"),
        (ExpertPruning(1, merge=True), "requires criterion 'loss'"),
    ):
        with pytest.raises(InputError, match=words):
            lrcore.prune_experts(model, recipe, pruning)
    with pytest.raises(InputError, match="at least 1"):
        ExpertPruning(0)
    with pytest.raises(InputError, match=r"[Dd]id you mean"):
        ExpertPruning(1, criterion="los")
    with pytest.raises(InputError, match="has no routed experts"):
        lrcore.prune_experts(lrcore.load(str(tiny_llama)), recipe, ExpertPruning(1))
