"""Spectra of tiny models, compared with brute force on the tokens."""

import importlib

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import lrcore
from lrcore.compression.analyze import Analysis
from lrcore.layers.linalg import singular_values, whitened_svd
from lrcore.models.layers import read_layer


@pytest.fixture(params=["tiny_llama", "tiny_llama_bias", "tiny_opt"])
def case(request, story_file):
    model = lrcore.load(str(request.getfixturevalue(request.param)))
    calibration = lrcore.calibrate(
        model, lrcore.Recipe(data=str(story_file), samples=6, seq_len=32)
    )
    return model, calibration, lrcore.analyze(model, calibration)


def test_every_layer_and_name_has_descending_raw_and_aware_values(case) -> None:
    model, _, analysis = case
    gated = model.network.config.model_type == "llama"
    assert analysis.matrices == (
        ("q", "k", "v", "o", "gate", "up", "down") if gated else ("q", "k", "v", "o", "up", "down")
    )
    first = [name for layer, name, kind in analysis.spectra if (layer, kind) == (0, "raw")]
    assert first == [*analysis.components, *analysis.matrices]
    for layer in range(analysis.layers):
        for name in (*analysis.components, *analysis.matrices):
            for kind in ("raw", "aware"):
                values = analysis.values(layer, name, kind)
                assert np.all(np.isfinite(values))
                assert np.all(np.diff(values) <= 1e-12)


def test_raw_values_of_qk_are_singular_values_of_the_product(case) -> None:
    model, _, analysis = case
    a = read_layer(model.network, 1).attention
    for head in range(a.n_q):
        q = a.q.weight.double()[head * 8 : head * 8 + 8]
        g = head // a.group
        k = a.k.weight.double()[g * 8 : g * 8 + 8]
        expected = torch.linalg.svdvals(q.T @ k)[:8].numpy()
        assert np.allclose(analysis.values(1, "qk", "raw", head), expected, atol=1e-6 * expected[0])
    assert analysis.heads(1, "qk") == a.n_q
    assert analysis.heads(1, "mlp") == 0


def test_aware_values_are_singular_values_of_the_outputs(case) -> None:
    model, calibration, analysis = case
    caught = []
    module = read_layer(model.network, 0).attention.o.weight
    projection = next(
        m
        for m in model.network.modules()
        if getattr(m, "weight", None) is not None and m.weight.data_ptr() == module.data_ptr()
    )
    handle = projection.register_forward_pre_hook(lambda _m, args: caught.append(args[0]))
    with torch.inference_mode():
        model.network(calibration.tokens)
    handle.remove()
    x = caught[0].flatten(0, -2).double()
    expected = torch.linalg.svdvals(x @ module.double().T / len(x) ** 0.5).numpy()
    assert np.allclose(analysis.values(0, "o", "aware"), expected, atol=1e-4 * expected[0])


def test_table_has_a_row_per_slot_with_valid_measures(case) -> None:
    _, calibration, analysis = case
    table = analysis.table(0.9)
    assert len(table) == analysis.layers * 2 * (3 + len(analysis.matrices))
    assert ((table.effective_rank >= 1) & (table.effective_rank <= table.full + 1e-9)).all()
    assert ((table.energy_rank >= 1) & (table.energy_rank <= table.full)).all()
    assert (analysis.table(0.99).energy_rank >= table.energy_rank).all()
    assert table[table.layer == 1].block_influence.iloc[0] == calibration.block_influence[1]


def test_invalid_layers_heads_and_names_raise(case) -> None:
    _, _, analysis = case
    with pytest.raises(lrcore.InputError, match="layers 0 to"):
        analysis.values(99, "qk")
    with pytest.raises(lrcore.InputError, match="heads 0 to"):
        analysis.values(0, "qk", "raw", 77)
    with pytest.raises(lrcore.InputError, match="qk/raw"):
        analysis.values(0, "qq")


def test_second_analysis_uses_the_cache(case, monkeypatch) -> None:
    model, calibration, analysis = case
    monkeypatch.setattr(importlib.import_module("lrcore.compression.analyze"), "raw_values", None)
    reloaded = lrcore.analyze(model, calibration)
    assert reloaded.spectra.keys() == analysis.spectra.keys()
    assert all(
        torch.equal(reloaded.spectra[slot], analysis.spectra[slot]) for slot in reloaded.spectra
    )


@pytest.mark.parametrize("shape", [(12, 5), (5, 12), (8, 8)])
@pytest.mark.parametrize("rank", [2, 5])
def test_singular_values_equal_those_of_the_decomposition(shape, rank) -> None:
    draw = torch.Generator().manual_seed(rank)
    left_matrix, right_matrix, x = (
        torch.randn(*size, generator=draw, dtype=torch.float64)
        for size in ((shape[0], rank), (rank, shape[1]), (40, shape[1]))
    )
    weight, second = left_matrix @ right_matrix, x.mT @ x / len(x)
    expected = torch.linalg.svdvals(weight)
    assert torch.allclose(singular_values(weight), expected, atol=1e-14 * expected[0], rtol=1e-6)
    expected = whitened_svd(weight, second)[1]
    assert torch.allclose(singular_values(weight, second), expected, atol=1e-7 * expected[0])


def test_analysis_reads_back_as_written(case, tmp_path) -> None:
    _, _, analysis = case
    analysis.write(tmp_path / "analysis.safetensors")
    read = Analysis.read(tmp_path / "analysis.safetensors")
    assert list(read.spectra) == list(analysis.spectra)
    assert all(
        torch.equal(read.spectra[slot], spectrum) for slot, spectrum in analysis.spectra.items()
    )
    for name in ("block_influence", "protocol", "layers", "components", "matrices"):
        assert getattr(read, name) == getattr(analysis, name)


def test_files_that_are_not_an_analysis_raise(tmp_path) -> None:
    with pytest.raises(lrcore.InputError, match="No analysis at"):
        Analysis.read(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("no tensors")
    save_file({"0.q.raw": torch.ones(1, 2)}, tmp_path / "weights.safetensors")
    for name in ("text", "weights"):
        with pytest.raises(lrcore.InputError, match="is not an analysis"):
            Analysis.read(tmp_path / f"{name}.safetensors")
