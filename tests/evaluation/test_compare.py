"""Comparison of two models, checked against the definition token by token."""

import math

import pytest
import torch

import lrcore


@pytest.fixture(scope="module")
def pair(tiny_llama, story_file):
    dense = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(
        model=str(tiny_llama),
        data=str(story_file),
        samples=4,
        seq_len=32,
        ratio=0.4,
        method="svd_llm",
    )
    return dense, lrcore.compress(dense, recipe)


@torch.inference_mode()
def by_hand(pair, ids):
    """Return loss of both models, KL divergence and agreement by predicted token in float64."""
    rows = []
    for t in range(1, len(ids)):
        p, q = (
            torch.log_softmax(model.network(input_ids=ids[None, :t]).logits[0, -1].double(), 0)
            for model in pair
        )
        rows.append(
            (-p[ids[t]], -q[ids[t]], (p.exp() * (p - q)).sum(), float(p.argmax() == q.argmax()))
        )
    return torch.tensor(rows, dtype=torch.float64)


def test_losses_divergence_and_agreement_equal_those_of_a_plain_loop(pair, story_file, story_text):
    result = lrcore.compare(*pair, str(story_file), samples=2, seq_len=16)
    ids = torch.tensor(pair[0].tokenizer(story_text, add_special_tokens=False).input_ids)
    rows = torch.cat([by_hand(pair, ids[i * 16 : i * 16 + 16]) for i in range(2)])
    assert result.dense.nll == pytest.approx(float(rows[:, 0].mean()), rel=1e-5)
    assert result.small.nll == pytest.approx(float(rows[:, 1].mean()), rel=1e-5)
    assert result.kl == pytest.approx(float(rows[:, 2].mean()), rel=1e-4)
    assert result.top1 == pytest.approx(float(rows[:, 3].mean()))
    assert result.delta == pytest.approx(float((rows[:, 1] - rows[:, 0]).mean()), rel=1e-4)
    windows = (rows[:, 1] - rows[:, 0]).view(2, -1).mean(1)
    assert result.delta_error == pytest.approx(float(windows.std() / math.sqrt(2)), rel=1e-3)
    dense, small = (torch.cat([part[i].flatten() for part in result.losses]) for i in (0, 1))
    assert torch.allclose(dense.double(), rows[:, 0], rtol=1e-4)
    assert torch.allclose(small.double(), rows[:, 1], rtol=1e-4)


def test_the_evaluations_of_a_comparison_equal_those_of_evaluate(pair, story_file):
    result = lrcore.compare(
        *pair, str(story_file), seq_len=20, protocol="strided", stride=8, samples=5
    )
    for model, evaluation in zip(pair, (result.dense, result.small), strict=True):
        alone = lrcore.evaluate(
            model, str(story_file), seq_len=20, protocol="strided", stride=8, samples=5
        )
        assert evaluation.nll == pytest.approx(alone.nll, rel=1e-5)
        assert (evaluation.protocol, evaluation.tokens, evaluation.bits_per_byte) == (
            alone.protocol,
            alone.tokens,
            pytest.approx(alone.bits_per_byte, rel=1e-5),
        )


def test_a_model_compared_with_itself_agrees(pair, story_file):
    result = lrcore.compare(pair[0], pair[0], str(story_file), samples=2, seq_len=16)
    assert (result.kl, result.top1, result.delta) == (0.0, 1.0, 0.0)
    assert result.delta_error == 0.0
    single_window = lrcore.compare(pair[0], pair[0], str(story_file), samples=1, seq_len=16)
    assert single_window.to_dict()["delta_error"] is None  # a single window gives no standard error


def test_windows_of_different_lengths_are_weighted_by_their_tokens(pair, story_file):
    settings = {"samples": 5, "seq_len": 20, "protocol": "strided", "stride": 8}
    result = lrcore.compare(*pair, str(story_file), **settings)
    tokens = torch.tensor(result.small.window_tokens).double()
    assert len(set(result.small.window_tokens)) == 2  # the first window has more scored tokens
    dense, small = (torch.cat([part[i].double().sum(1) for part in result.losses]) for i in (0, 1))
    residuals = (small - dense) - tokens * result.delta
    expected = math.sqrt(5 / 4 * float(residuals.square().sum())) / float(tokens.sum())
    assert result.delta_error == pytest.approx(expected, rel=1e-6)
    alone = [lrcore.evaluate(model, str(story_file), **settings) for model in pair]
    assert alone[1].delta_error(alone[0]) == pytest.approx(expected, rel=1e-3)


def test_the_error_of_a_difference_needs_equal_windows(pair, story_file):
    two, three = (lrcore.evaluate(pair[0], str(story_file), samples=n, seq_len=16) for n in (2, 3))
    with pytest.raises(lrcore.InputError, match="different windows: 2 and 3"):
        two.delta_error(three)


def test_nan_predictions_are_counted(pair, story_file):
    plain = pair[1].network.forward

    def with_nan(**options):
        out = plain(**options)
        out.logits[:, 3] = float("nan")
        return out

    pair[1].network.forward = with_nan
    try:
        result = lrcore.compare(*pair, str(story_file), samples=2, seq_len=16)
    finally:
        del pair[1].network.forward
    assert math.isnan(result.kl)
    assert (result.dense.nonfinite, result.small.nonfinite) == (0, 2)
    assert result.to_dict()["top1"] is None


def test_models_with_different_vocabularies_are_refused(pair, tiny_opt, story_file, tmp_path):
    extended = lrcore.load(str(tiny_opt))
    extended.tokenizer.add_tokens(["unheard"])
    with pytest.raises(lrcore.InputError, match="different vocabularies"):
        lrcore.compare(pair[0], extended, str(story_file), samples=1, seq_len=8)


def test_progress_counts_windows(pair, story_file):
    seen = []
    lrcore.compare(
        *pair,
        str(story_file),
        samples=3,
        seq_len=8,
        batch=2,
        progress=lambda *step: seen.append(step),
    )
    assert seen == [("compare", 2, 3), ("compare", 3, 3)]
