"""Slicing of the residual stream: exact rotations, the removed energy, and saved models."""

import copy
import json

import pytest
import torch
from elsewhere import TOKENS as THERE
from elsewhere import loaded_elsewhere
from tiny_models import family_folder, tiny
from torch import nn
from transformers import AutoModelForCausalLM

import lrcore
from lrcore.checkpoints.standard.standard_fit import standard_fit
from lrcore.cli import main
from lrcore.cli.reports import step_report
from lrcore.compression.steps.slicing.rotation import check_stream
from lrcore.compression.steps.slicing.slicing import (
    principal,
    slice_network,
    sliced_size,
    stream_width,
)
from lrcore.compression.steps.step_settings import ROTATIONS
from lrcore.evaluation.local_errors import local_errors
from lrcore.layers.modules.sliced import residual_parameters
from lrcore.models.architectures import ARCHITECTURES, architecture_of, decoder_layers
from lrcore.models.load import LoadedModel
from lrcore.recipes.history import Sliced
from lrcore.system.errors import Cancelled, InputError

pytestmark = pytest.mark.one_in(3)

TOKENS = torch.randint(3, 300, (4, 24), generator=torch.Generator().manual_seed(5))
SLICED = (
    "llama",
    "arcee",
    "mistral",
    "ministral",
    "qwen2",
    "qwen3",
    "gemma",
    "phi3",
    "gpt2",
    "opt",
    "gpt_neo",
    "smollm3",
    "starcoder2",
    "glm",
    "ernie4_5",
    "seed_oss",
    "cwm",
    "helium",
    "jais2",
    "apertus",
    "exaone",
    "internlm3",
    "hunyuan_v1_dense",
    "ministral3",
)
WIDTH = 32  # of the tiny models


class ExactNorm(nn.Module):
    """RMSNorm in the dtype of the input; the norms of the families compute in float32."""

    def __init__(self, norm: nn.Module, offset: float) -> None:
        super().__init__()
        self.weight, self.offset = norm.weight, offset
        self.eps = getattr(norm, "variance_epsilon", None) or norm.eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (
            x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * (self.weight + self.offset)
        )


def exact(network: nn.Module) -> nn.Module:
    """Return the network with all computations in float64."""
    network = copy.deepcopy(network).double()
    offset = architecture_of(network).norm_offset
    for name, module in list(network.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            network.set_submodule(name, ExactNorm(module, offset))
    return network


def sliced(network: nn.Module, width: int, rotations: str = "block") -> nn.Module:
    return slice_network(network, TOKENS, width, rotations, lambda *_: None)


def logits(network: nn.Module, tokens: torch.Tensor = TOKENS, **kwargs) -> torch.Tensor:
    with torch.inference_mode():
        return network(input_ids=tokens, **kwargs).logits


@pytest.mark.parametrize("family", SLICED)
@pytest.mark.parametrize("rotations", ROTATIONS)
def test_rotation_without_slicing_does_not_change_the_logits(family, rotations):
    network = exact(tiny(family))
    before = logits(network)
    rotated = sliced(network, WIDTH, rotations)
    assert torch.allclose(logits(rotated), before, rtol=0, atol=1e-9)
    assert not torch.allclose(
        rotated.get_input_embeddings().weight, network.get_input_embeddings().weight, atol=0.1
    )
    assert torch.equal(logits(network), before)  # the original network is unchanged


@pytest.mark.parametrize("folder", ["tiny_llama", "tiny_llama_bias", "tiny_opt"])
def test_rotation_supports_tied_embeddings_and_biases(folder, request):
    network = exact(lrcore.load(str(request.getfixturevalue(folder))).network)
    rotated = sliced(network, WIDTH)
    assert torch.allclose(logits(rotated), logits(network), rtol=0, atol=1e-9)
    assert rotated.get_output_embeddings().weight is not rotated.get_input_embeddings().weight
    assert not rotated.config.tie_word_embeddings


@pytest.mark.parametrize("family", ["gpt2", "opt", "starcoder2"])
def test_layer_norm_leaves_one_direction_empty(family):
    """All writers are centered, so the stream has no component along (1, ..., 1)."""
    network = exact(tiny(family))
    assert torch.allclose(logits(sliced(network, WIDTH - 1)), logits(network), rtol=0, atol=1e-9)
    assert not torch.allclose(
        logits(sliced(network, WIDTH - 2)), logits(network), rtol=0, atol=1e-3
    )


def test_principal_subspace_holds_the_most_energy():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(200, 12, generator=generator, dtype=torch.float64) @ torch.randn(
        12, 12, generator=generator, dtype=torch.float64
    )
    q = principal(x.mT @ x / len(x), 5)
    assert torch.allclose(q.mT @ q, torch.eye(5, dtype=torch.float64), atol=1e-12)
    retained_energy = float((x @ q).square().sum() / len(x))
    assert retained_energy == pytest.approx(
        float(torch.linalg.svdvals(x)[:5].square().sum() / len(x)), rel=1e-12
    )
    for _ in range(200):
        random_basis = torch.linalg.qr(
            q + 0.3 * torch.randn(12, 5, generator=generator, dtype=torch.float64)
        ).Q
        assert float((x @ random_basis).square().sum() / len(x)) < retained_energy


def test_first_block_loses_the_energy_of_the_dropped_eigenvalues():
    network = exact(tiny("llama"))
    dense = network.get_input_embeddings()(TOKENS).flatten(0, 1)
    root = (dense.square().mean(-1, keepdim=True) + network.config.rms_norm_eps).sqrt()
    lost = 0.0
    for width in (31, 20, 8):
        narrow = sliced(network, width).get_input_embeddings()(TOKENS).flatten(0, 1)
        error = float(((dense / root).square().sum(-1) - (narrow / root).square().sum(-1)).mean())
        eigenvalues = torch.linalg.svdvals(dense / root).square() / len(dense)
        assert error == pytest.approx(float(eigenvalues[width:].sum()), rel=1e-9)
        assert error > lost
        lost = error


def reference_logits(network: nn.Module, width: int) -> torch.Tensor:
    """Apply SliceGPT to a Llama without rotation: project the stream before each component."""
    body = network.model

    def projected(h: torch.Tensor) -> torch.Tensor:
        rows = (
            h / (h.square().mean(-1, keepdim=True) + network.config.rms_norm_eps).sqrt()
        ).flatten(0, 1)
        basis = torch.linalg.svd(rows).Vh[:width]
        return h @ basis.mT @ basis

    angles = body.rotary_emb(
        body.embed_tokens(TOKENS), position_ids=torch.arange(TOKENS.shape[1])[None]
    )
    h = projected(body.embed_tokens(TOKENS))
    for layer in body.layers:
        h = projected(
            h
            + layer.self_attn(
                layer.input_layernorm(h), position_embeddings=angles, attention_mask=None
            )[0]
        )
        h = projected(h + layer.mlp(layer.post_attention_layernorm(h)))
    return network.lm_head(body.norm(h))


@pytest.mark.parametrize("width", [30, 20])
def test_each_basis_is_computed_on_the_sliced_layers_before_it(width):
    network = exact(tiny("llama"))
    expected = reference_logits(network, width)
    assert torch.allclose(logits(sliced(network, width)), expected, rtol=0, atol=1e-8)
    assert not torch.allclose(expected, logits(network), atol=0.1)


def test_single_rotation_is_the_basis_of_the_mean_moments():
    """Collect normed inputs by hooks on the dense norms."""
    network, seen = exact(tiny("llama")), []
    for norm in [module for module in network.modules() if isinstance(module, ExactNorm)]:
        norm.register_forward_pre_hook(
            lambda module, args: seen.append(
                args[0] / (args[0].square().mean(-1, keepdim=True) + module.eps).sqrt()
            )
        )
    logits(network)
    assert len(seen) == 2 * 2 + 1
    basis = torch.linalg.svd(torch.cat(seen).flatten(0, 1), full_matrices=False).Vh[:20]
    narrow = sliced(network, 20, "one")
    table, dense = narrow.get_input_embeddings().weight, network.get_input_embeddings().weight
    assert torch.allclose(table @ table.mT, dense @ basis.mT @ basis @ dense.mT, atol=1e-9)
    assert all(residual_parameters(layer) == 0 for layer in decoder_layers(narrow))


@pytest.mark.parametrize("family", ["llama", "opt", "gpt2", "phi3", "starcoder2"])
@pytest.mark.parametrize("rotations", ROTATIONS)
def test_parameters_are_counted_and_the_ratio_is_met(family, rotations):
    dense = LoadedModel(family, tiny(family), None, "", None)
    for ratio, multiple in ((0.05, 1), (0.3, 1), (0.3, 4)):
        width = stream_width(dense, ratio, rotations, multiple)
        assert width % multiple == 0
        removed = []
        for tried_width in (width, width + multiple):
            layers = decoder_layers(sliced(dense.network, tried_width, rotations))
            held = sum(parameter.numel() for layer in layers for parameter in layer.parameters())
            removed.append(1 - held / dense.size.decoder_linear)
        assert removed[0] >= ratio > removed[1]
        made = LoadedModel(family, sliced(dense.network, width, rotations), None, "", None)
        assert 1 - made.size.decoder_linear / dense.size.decoder_linear == pytest.approx(
            removed[0], abs=1e-12
        )
        assert made.size.parameters == sum(p.numel() for p in made.network.parameters())
        assert made.size.kv_values == dense.size.kv_values


@pytest.mark.parametrize("family", SLICED)
@pytest.mark.parametrize("rotations", ROTATIONS)
def test_sliced_size_predicts_the_size_of_the_model(family, rotations):
    dense = LoadedModel(family, tiny(family), None, "", None)
    message = sliced_size(dense, 0.2, rotations, 2)
    made = LoadedModel(family, sliced(dense.network, message["width"], rotations), None, "", None)
    assert (message["width"], message["of"]) == (stream_width(dense, 0.2, rotations, 2), WIDTH)
    assert message["parameters"] == made.size.parameters
    assert message["decoder_parameters"] == made.size.decoder_linear


@pytest.mark.parametrize("family", SLICED)
def test_cached_generation_gives_the_logits_of_a_full_pass(family):
    network = sliced(tiny(family), 24)
    all_logits = logits(network)
    first = network(input_ids=TOKENS[:, :20], use_cache=True)
    next_logits = [
        logits(network, TOKENS[:, i : i + 1], past_key_values=first.past_key_values, use_cache=True)
        for i in range(20, 24)
    ]
    assert torch.allclose(
        torch.cat(next_logits, dim=1), all_logits[:, 20:], atol=1e-4 * float(all_logits.abs().max())
    )


@pytest.fixture
def request_made(tiny_llama, story_file):
    recipe = lrcore.Recipe(
        model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.3
    )
    return lrcore.load(str(tiny_llama)), recipe


FOLDERS = ("tiny_llama", "tiny_llama_bias", "tiny_opt")


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("rotations", ROTATIONS)
def test_saved_model_reloads_bit_for_bit(folder, rotations, request, request_made, tmp_path):
    small = lrcore.slice_hidden(
        lrcore.load(str(request.getfixturevalue(folder))), request_made[1], rotations
    )
    saved = lrcore.save(small, tmp_path / "saved")
    back = lrcore.load(str(saved))
    assert torch.equal(logits(back.network), logits(small.network))
    assert back.size == small.size
    assert torch.equal(logits(lrcore.load(str(saved), offload=True).network), logits(small.network))


def test_exported_model_loads_without_this_project(request, request_made, tmp_path):
    models, folders = [], []
    for folder, rotations in [*((folder, "block") for folder in FOLDERS), ("tiny_llama", "one")]:
        models.append(
            lrcore.slice_hidden(
                lrcore.load(str(request.getfixturevalue(folder))), request_made[1], rotations
            )
        )
        folders.append(lrcore.export(models[-1], tmp_path / f"{folder}-{rotations}"))
    for model, folder, result in zip(
        models, folders, loaded_elsewhere(folders, tmp_path), strict=True
    ):
        assert torch.equal(result, logits(model.network, THERE))
        assert (
            f"width of its residual stream is {model.step(Sliced).width} instead of 32"
            in (folder / "README.md").read_text()
        )


@pytest.mark.slow
@pytest.mark.parametrize("rotations", ROTATIONS)
def test_every_family_is_exported_and_loads_without_this_project(
    rotations, tiny_llama, request_made, tmp_path
):
    """Use each kind of rotation for half of the families."""
    families = SLICED[ROTATIONS.index(rotations) :: len(ROTATIONS)]
    models, folders = [], []
    for family in families:
        dense = lrcore.load(str(family_folder(family, tiny_llama, tmp_path / family)))
        models.append(lrcore.slice_hidden(dense, request_made[1], rotations))
        folders.append(lrcore.export(models[-1], tmp_path / f"{family}-out"))
        assert torch.equal(
            logits(lrcore.load(str(folders[-1])).network), logits(models[-1].network)
        )
    for family, model, result in zip(
        families, models, loaded_elsewhere(folders, tmp_path), strict=True
    ):
        assert torch.equal(result, logits(model.network, THERE)), family


@pytest.mark.parametrize("family", ["llama", "mistral", "ministral", "qwen3"])
def test_single_rotation_can_be_exported_as_a_stock_model(
    family, tiny_llama, request_made, tmp_path
):
    dense = lrcore.load(str(family_folder(family, tiny_llama, tmp_path / family)))
    small = lrcore.slice_hidden(dense, request_made[1], "one", multiple=4)
    folder = lrcore.export(small, tmp_path / "stock", standard=True)
    assert not list(folder.glob("*.py"))
    assert small.history[-1].stock.qualifies
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert stock.config.hidden_size == small.step(Sliced).width
    expected = logits(small.network)
    assert torch.allclose(logits(stock), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    norms = (2 * 2 + 1) * small.step(Sliced).width
    assert lrcore.load(str(folder)).size.parameters == small.size.parameters + norms


@pytest.mark.parametrize(
    ("family", "rotations", "words"),
    [
        ("llama", "block", "sliced in several bases"),
        ("opt", "one", "do not support"),
        ("gemma", "one", "do not"),
        ("qwen2", "one", "do not"),
    ],
)
def test_models_that_cannot_be_stock_raise_with_the_reason(
    family, rotations, words, tiny_llama, request_made, tmp_path
):
    small = lrcore.slice_hidden(
        lrcore.load(str(family_folder(family, tiny_llama, tmp_path / family))),
        request_made[1],
        rotations,
        multiple=4,
    )
    assert not small.history[-1].stock.qualifies
    with pytest.raises(InputError, match=words):
        lrcore.export(small, tmp_path / "stock", standard=True)


def test_width_must_be_a_multiple_of_the_heads_for_a_stock_model(request_made, tmp_path):
    with pytest.raises(InputError, match="slice it with multiple 4"):
        lrcore.export(lrcore.slice_hidden(*request_made, "one"), tmp_path / "stock", standard=True)


def test_sliced_model_with_narrower_mlps_is_exported_as_a_stock_model(request_made, tmp_path):
    small = lrcore.slice_hidden(*request_made, "one", 4)
    recipe = request_made[1].with_(method="a3", ratio=0.1)
    suggested = standard_fit(
        small, lrcore.allocate(lrcore.prepare(small, recipe), recipe)
    ).to_dict()["ranks"]
    less = lrcore.compress(small, recipe.with_(rank_overrides=suggested))
    assert less.history[-1].stock.qualifies
    folder = lrcore.export(less, tmp_path / "stock", standard=True)
    assert torch.allclose(
        logits(AutoModelForCausalLM.from_pretrained(folder)), logits(less.network), atol=1e-4
    )


def test_bfloat16_model_is_saved_in_its_dtype(tiny_llama, request_made, tmp_path):
    small = lrcore.slice_hidden(lrcore.load(str(tiny_llama), dtype="bfloat16"), request_made[1])
    back = lrcore.load(str(lrcore.save(small, tmp_path / "saved")))
    assert {p.dtype for p in back.network.parameters()} == {torch.bfloat16}
    assert torch.equal(logits(back.network), logits(small.network))


def test_report_matches_the_sliced_model(request_made):
    model, recipe = request_made
    small = lrcore.slice_hidden(model, recipe, multiple=4)
    output, summary = small.step(Sliced), small.account.to_dict()
    layers = decoder_layers(small.network)
    assert (
        output.residual_parameters
        == sum(map(residual_parameters, layers))
        == 2 * 3 * output.width**2
    )
    assert (output.of, output.width % 4, output.requested) == (32, 0, 0.3)
    assert output.removed == 1 - small.size.decoder_linear / model.size.decoder_linear >= 0.3
    assert (
        summary["parameters"]
        == small.size.parameters
        == sum(p.numel() for p in small.network.parameters())
    )
    assert summary["megabytes"] == small.size.megabytes
    assert summary["dense_parameters"] == model.size.parameters
    assert summary["removed_params"] == output.removed
    assert small.base.fingerprint == model.fingerprint != small.fingerprint


def test_sliced_model_is_generated_compared_measured_and_quantized(request_made, tmp_path):
    model, recipe = request_made
    small = lrcore.slice_hidden(model, recipe)
    assert lrcore.generate(small, "Once upon", max_new_tokens=5) == lrcore.generate(
        small, "Once upon", max_new_tokens=5
    )
    comparison = lrcore.compare(model, small, recipe.data, samples=4, seq_len=32)
    assert comparison.kl > 0
    cost = lrcore.measure_cost(small, context=24)
    assert cost.flops_prefill == pytest.approx(cost.flops_formula, rel=0.01)
    assert cost.flops_prefill < lrcore.measure_cost(model, context=24).flops_prefill
    coded = lrcore.quantize(small, bits=8, group=8)
    back = lrcore.load(str(lrcore.save(coded, tmp_path / "coded")))
    assert torch.equal(logits(back.network), logits(coded.network))
    with pytest.raises(InputError, match="is not a compressed"):
        local_errors(model, small, recipe.data, samples=2, seq_len=32)


@pytest.mark.parametrize("method", ["a3", "svd_llm", "fused"])
@pytest.mark.parametrize("folder", ["tiny_llama", "tiny_opt"])
def test_model_with_a_single_rotation_is_compressed(
    method, folder, request, request_made, tmp_path
):
    dense = lrcore.load(str(request.getfixturevalue(folder)))
    small = lrcore.slice_hidden(dense, request_made[1], "one")
    less = lrcore.compress(small, request_made[1].with_(method=method, ratio=0.2))
    assert less.size.decoder_linear < small.size.decoder_linear
    errors = local_errors(small, less, request_made[1].data, samples=2, seq_len=32).errors
    assert all(
        0 <= value < 0.5 for layer in errors for name, value in layer.items() if name != "residual"
    )
    back = lrcore.load(str(lrcore.save(less, tmp_path / "less")))
    assert torch.equal(logits(back.network), logits(less.network))


@pytest.mark.parametrize("family", sorted(ARCHITECTURES.keys() - set(SLICED)))
def test_other_families_raise(family):
    network = tiny(family)
    with pytest.raises(InputError, match="cannot be sliced"):
        check_stream(network)
    row = architecture_of(network)
    assert row.norm_after or all(
        decoder_layers(network)[0].get_submodule(path) is not None for path in row.block_norms
    )
    assert network.get_submodule(row.last_norm) is not None


def test_gpt_neox_without_parallel_residual_is_sliced():
    network = tiny("gpt_neox")
    network.config.use_parallel_residual = False
    for layer in decoder_layers(network):
        layer.use_parallel_residual = False
    network = exact(network)
    check_stream(network)
    assert torch.allclose(logits(sliced(network, WIDTH)), logits(network), rtol=0, atol=1e-9)


def test_opt_with_norms_after_its_blocks_raises():
    network = tiny("opt")
    network.config.do_layer_norm_before = False
    with pytest.raises(InputError, match="do_layer_norm_before False"):
        check_stream(network)


def test_invalid_slicing_raises(request_made):
    model, recipe = request_made
    with pytest.raises(InputError, match=r"[Dd]id you mean"):
        lrcore.slice_hidden(model, recipe, "blocks")
    with pytest.raises(InputError, match="at most"):
        lrcore.slice_hidden(model, recipe.with_(ratio=0.99))
    with pytest.raises(InputError, match="1 to 32"):
        lrcore.slice_hidden(model, recipe, multiple=33)
    with pytest.raises(InputError, match="offload"):
        lrcore.slice_hidden(lrcore.load(recipe.model, offload=True), recipe)
    small = lrcore.slice_hidden(model, recipe)
    with pytest.raises(InputError, match="Slice the dense"):
        lrcore.slice_hidden(small, recipe)
    with pytest.raises(InputError, match="compressed"):
        lrcore.prune_layers(small, recipe, 1)
    with pytest.raises(InputError, match="compressed"):
        lrcore.slice_hidden(lrcore.compress(model, recipe.with_(method="a3")), recipe)


def test_slicing_reports_progress_and_can_be_cancelled(request_made):
    seen = []
    lrcore.slice_hidden(*request_made, progress=lambda *step: seen.append(step))
    assert seen == [("slice", done, 3) for done in range(4)]

    def stop(_stage: str, done: int, _total: int) -> None:
        if done == 2:
            raise Cancelled

    for rotations in ROTATIONS:
        with pytest.raises(Cancelled):
            lrcore.slice_hidden(*request_made, rotations, progress=stop)


def test_slice_command_equals_the_function(request_made, tmp_path, capsys):
    model, recipe = request_made
    message = [
        "--data",
        recipe.data,
        "--samples",
        "4",
        "--seq-len",
        "32",
        "--ratio",
        "0.3",
        "--rotations",
        "one",
        "--multiple",
        "2",
        "--json",
    ]
    assert main(["slice", recipe.model, str(tmp_path / "out"), *message]) == 0
    output, made = json.loads(capsys.readouterr().out), lrcore.slice_hidden(model, recipe, "one", 2)
    assert output["sliced"] == json.loads(json.dumps(step_report(made.step(Sliced))))
    assert torch.equal(logits(lrcore.load(output["out"]).network), logits(made.network))
