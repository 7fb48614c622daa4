"""Basis Sharing: common bases of neighboring layers, sizes, saving and export."""

import pytest
import torch
from elsewhere import TOKENS as THERE
from elsewhere import loaded_elsewhere

import lrcore
from lrcore.cli import main
from lrcore.compression.calibration.calibrate import calibrate
from lrcore.compression.steps.share import SHARED, layer_groups, shared_size
from lrcore.layers.statistics import TAPS
from lrcore.models.architectures import decoder_layers
from lrcore.models.layers import read_layer

TOKENS = torch.arange(3, 43).view(2, 20)


def logits(model) -> torch.Tensor:
    with torch.inference_mode():
        return model.network(input_ids=TOKENS).logits


@pytest.fixture(params=["tiny_llama_bias", "tiny_opt"])
def model(request):
    return lrcore.load(str(request.getfixturevalue(request.param)))


@pytest.fixture
def recipe(story_file):
    return lrcore.Recipe(data=str(story_file), samples=6, seq_len=32, ratio=0.3)


def test_group_has_the_best_common_basis_of_its_rank(model, recipe) -> None:
    """No product of the same rank is closer in the metric of the summed moments.

    Compare with the SVD of `S [W_l, W_l+1]`, where `S S^T = S_l + S_l+1`, at the rank of the paper.
    """
    made = lrcore.share_bases(model, recipe, 2)
    calibration = calibrate(model, recipe)
    dense, small = ([read_layer(m.network, i) for i in range(2)] for m in (model, made))
    for name in dense[0].matrices():
        parts = [[0, 1]] if name in SHARED else [[0], [1]]
        for part in parts:
            weight = torch.cat([dense[i].matrices()[name].weight for i in part]).double()
            stacked = torch.cat([small[i].matrices()[name].weight for i in part]).double()
            second = sum(calibration.moments(i).second(TAPS[name]).double() for i in part)
            rank = small[0].matrices()[name].rank
            d_out, d_in = weight.shape
            assert rank * (d_out + d_in) <= 0.71 * d_out * d_in < (rank + 2) * (d_out + d_in)
            values, vectors = torch.linalg.eigh(second)
            root = vectors * values.clamp_min(0).sqrt()
            least_error = torch.linalg.svdvals(weight @ root)[rank:].square().sum()
            error = ((weight - stacked) @ root).square().sum()
            assert float(error) == pytest.approx(float(least_error), rel=1e-3)


def test_shared_bases_are_stored_and_counted_once(model, recipe, tmp_path) -> None:
    made = lrcore.share_bases(model, recipe, 2)
    total = len(decoder_layers(made.network))
    first, second = (read_layer(made.network, i).matrices() for i in range(2))
    assert first["q"].down.data_ptr() == second["q"].down.data_ptr()
    assert first["o"].down.data_ptr() != second["o"].down.data_ptr()
    separate_parameters = sum(read_layer(made.network, i).parameters for i in range(total))
    twice = sum(first[name].down.numel() for name in SHARED if name in first)
    assert (
        made.size.decoder_linear
        == separate_parameters - twice
        == made.account.model.decoder_parameters
    )
    assert made.size.decoder_linear == shared_size(model, 0.3, 2)
    assert made.size.decoder_linear <= 0.7 * model.size.decoder_linear
    gone = model.size.parameters - made.size.parameters
    assert gone == model.size.decoder_linear - made.size.decoder_linear
    assert made.size.stored == 4 * made.size.parameters + model.size.stored - (
        4 * model.size.parameters
    )
    back = lrcore.load(str(lrcore.save(made, tmp_path / "saved")))
    assert torch.equal(logits(back), logits(made))
    assert (back.size, back.history) == (made.size, made.history)
    assert lrcore.generate(back, "Once", 4) == lrcore.generate(made, "Once", 4)
    out = lrcore.export(made, tmp_path / "out")
    assert "share a basis" in (out / "README.md").read_text()
    reloaded = lrcore.load(str(out))
    assert torch.equal(logits(reloaded), logits(made))
    assert reloaded.size == made.size


def test_export_loads_without_this_project(model, recipe, tmp_path) -> None:
    made = lrcore.share_bases(model, recipe, 3)
    folder = lrcore.export(made, tmp_path / "out")
    (result,) = loaded_elsewhere([folder], tmp_path)
    assert torch.equal(result, made.network(THERE).logits.detach())


def test_groups_are_neighboring_layers(model) -> None:
    total = len(decoder_layers(model.network))
    assert list(layer_groups(model.network, 2)) == [[0, 1], *([[2]] if total == 3 else [])]
    assert list(layer_groups(model.network, 1)) == [[i] for i in range(total)]


def test_unsupported_steps_before_or_after_sharing_raise(model, recipe, tmp_path, capsys) -> None:
    made = lrcore.share_bases(model, recipe)
    for step in (
        lambda: lrcore.compress(made, recipe.with_(method="svd")),
        lambda: lrcore.quantize(made, 4),
        lambda: lrcore.sparsify(made, recipe),
        lambda: lrcore.share_bases(made, recipe),
        lambda: lrcore.slice_hidden(made, recipe),
        lambda: lrcore.prune_layers(made, recipe, 1),
    ):
        with pytest.raises(lrcore.InputError, match=r"before it shared bases|dense model"):
            step()
    with pytest.raises(lrcore.InputError, match=r"lower ratio|leaves no"):
        lrcore.share_bases(model, recipe.with_(ratio=0.99))
    saved = str(lrcore.save(made, tmp_path / "saved"))
    with pytest.raises(lrcore.InputError, match="share a basis"):
        lrcore.load(saved, offload=True)
    plain = lrcore.export(made, tmp_path / "stock", standard=True)
    assert torch.allclose(logits(lrcore.load(str(plain))), logits(made), atol=1e-5)


def test_sharing_can_be_a_row_of_a_sweep(tiny_llama, recipe, tmp_path) -> None:
    dense = lrcore.load(str(tiny_llama))
    settings = [lrcore.EvaluationSettings(recipe.data, 1, 16)]
    sweep = lrcore.Sweep(recipe, rows=[{"share": {"group": [1, 3]}}], evaluations=settings)
    rows = lrcore.run_sweep(dense, sweep, tmp_path)
    assert [(row.method, row.policy, row.error) for row in rows[1:]] == [
        ("share", "1", None),
        ("share", "3", None),
    ]
    assert rows[1].achieved >= 0.3 - 1e-9


def test_share_command_equals_the_function(tiny_llama, recipe, tmp_path, capsys) -> None:
    flags = ["--data", recipe.data, "--samples", "6", "--seq-len", "32", "--ratio", "0.3"]
    assert main(["share", str(tiny_llama), str(tmp_path / "out"), *flags, "--group", "3"]) == 0
    assert "removed" in capsys.readouterr().out
    made = lrcore.share_bases(lrcore.load(str(tiny_llama)), recipe, 3)
    assert torch.equal(logits(lrcore.load(str(tmp_path / "out"))), logits(made))
