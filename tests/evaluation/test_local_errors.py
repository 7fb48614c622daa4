"""Local errors, compared with the same quantities from the outputs of layers, and the damage by
component.
"""

import pytest
import torch

import lrcore
from lrcore.evaluation.contributions import mix_models
from lrcore.evaluation.local_errors import local_errors


def compressed(folder, method, story_file, ratio=0.4):
    dense = lrcore.load(str(folder), dtype="float64")
    recipe = lrcore.Recipe(
        model=str(folder),
        dtype="float64",
        data=str(story_file),
        samples=16,
        seq_len=64,
        ratio=ratio,
        method=method,
    )
    return dense, lrcore.compress(dense, recipe)


@pytest.mark.parametrize("family", ["tiny_llama", "tiny_opt"])
def test_an_unchanged_model_has_no_error(family, request, story_file):
    dense = lrcore.load(str(request.getfixturevalue(family)))
    result = local_errors(dense, dense, str(story_file), samples=3, seq_len=16)
    assert all(value == 0 for row in result.errors for value in row.values())


def relative(true, approximation):
    return float(((true - approximation) ** 2).sum() / (true**2).sum())


@pytest.mark.parametrize("family", ["tiny_llama", "tiny_opt"])
@pytest.mark.parametrize("method", ["a3", "svd_llm"])
def test_errors_equal_those_of_modules_on_the_dense_inputs(family, method, request, story_file):
    dense, small = compressed(request.getfixturevalue(family), method, story_file)
    result = local_errors(dense, small, str(story_file), samples=3, seq_len=16)
    ids = torch.tensor(dense.tokenizer(story_file.read_text(), add_special_tokens=False).input_ids)[
        :48
    ].view(3, 16)
    run = {"output_hidden_states": True, "use_cache": False}
    states, drifted = (
        model.network(input_ids=ids, **run).hidden_states for model in (dense, small)
    )
    for index, layer_errors in enumerate(
        result.errors[:-1]
    ):  # the final norm is applied to the last hidden state
        assert layer_errors["residual"] == pytest.approx(
            relative(states[index + 1], drifted[index + 1]), rel=1e-8
        )
    # Each layer in an otherwise dense model: its attention is comparable, but not its MLP, which
    # has inputs that the attention changed.
    for index in range(len(result.errors)):
        seen = []
        for model in (dense, small):
            mixed = lrcore.load(dense.name, dtype="float64")
            layers = mixed.network.get_decoder().layers
            layers[index] = model.network.get_decoder().layers[index]
            handle = layers[index].self_attn.register_forward_hook(
                lambda _m, _a, out, seen=seen: seen.append(out[0])
            )
            with torch.inference_mode():
                mixed.network(input_ids=ids, use_cache=False)
            handle.remove()
        assert result.errors[index]["attention"] == pytest.approx(relative(*seen), rel=1e-8)


def test_the_score_error_is_close_to_the_prediction_if_the_theory_is_exact(tiny_opt, story_file):
    """For one head without rotary embeddings, Theorem 3.2 predicts E (q . k)^2 over independent
    tokens, close to the error measured on many random windows.
    """
    dense, small = compressed(tiny_opt, "a3", story_file)
    result = local_errors(dense, small, str(story_file), samples=16, seq_len=64)
    for row in result.table().query("component == 'scores'").itertuples():
        assert row.error == pytest.approx(row.predicted, rel=1.0)
        assert 0 < row.error < 1


def test_the_mlp_error_is_measured_on_the_dense_input(tiny_llama, story_file):
    dense, small = compressed(tiny_llama, "a3", story_file)
    alone = lrcore.compress(
        dense,
        lrcore.Recipe(
            **{
                **small.recipe.to_dict(),
                "rank_overrides": {f"{i}.{c}": 8 for i in range(3) for c in ("qk", "ov")},
            }
        ),
    )
    combined, mlp_only = (
        local_errors(dense, model, str(story_file), samples=2, seq_len=16)
        for model in (small, alone)
    )
    ranks = [{(r.layer, r.component): r.rank for r in model.ranks} for model in (small, alone)]
    same = [i for i in range(3) if ranks[0][i, "mlp"] == ranks[1][i, "mlp"]]
    for i in same:
        assert combined.errors[i]["mlp"] == pytest.approx(mlp_only.errors[i]["mlp"], rel=1e-6)
    assert all(row["scores"] == row["ov"] == row["attention"] == 0 for row in mlp_only.errors)
    assert all(row["scores"] > 0 and row["attention"] > 0 for row in combined.errors)


def test_the_ov_error_is_measured_with_the_dense_scores(tiny_llama, story_file):
    dense, small = compressed(tiny_llama, "a3", story_file)
    result = local_errors(dense, small, str(story_file), samples=2, seq_len=16)
    only = local_errors(
        dense, mix_models(dense, small, ("ov",)), str(story_file), samples=2, seq_len=16
    )
    for all_parts, ov_only in zip(result.errors, only.errors, strict=True):
        assert all_parts["ov"] == ov_only["ov"] == ov_only["attention"] > 0
        assert ov_only["scores"] == 0


def test_predicted_errors_are_those_of_the_plan(tiny_llama, story_file):
    dense, small = compressed(tiny_llama, "modegpt", story_file)
    table = local_errors(dense, small, str(story_file), samples=2, seq_len=16).table()
    assert list(table.columns) == ["layer", "component", "error", "predicted"]
    assert len(table) == 3 * 5
    energy = {(r.layer, r.component): r.energy for r in small.ranks}
    row = table.query("layer == 1 and component == 'mlp'").iloc[0]
    assert row.predicted == 1 - energy[1, "mlp"]
    assert table.query("component == 'residual'").predicted.isna().all()
