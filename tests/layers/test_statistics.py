"""Samples of a stream, second moments, and means of activations."""

import pytest
import torch

from lrcore.layers.statistics import (
    BLOCK,
    BLOCK_INFLUENCE,
    SAMPLE,
    Accumulator,
    EvenSample,
    Moments,
)


def sampled(count: int, batch: int, seed: int = 0) -> torch.Tensor:
    """Return the positions that a sample retains from a stream of `count` rows."""
    sample = EvenSample(seed)
    for rows in torch.arange(count).unsqueeze(1).split(batch):
        sample.add(rows)
    return sample.rows.flatten()


@pytest.mark.parametrize("count", [1, 700, SAMPLE, SAMPLE + 1, 5000, 20011])
def test_sample_has_one_row_per_block_for_any_batch_size(count):
    sample_rows, stride = sampled(count, 64), 1
    while -(-count // stride) > SAMPLE:
        stride *= 2
    assert torch.equal(sample_rows // stride, torch.arange(-(-count // stride)))
    assert len(sample_rows) > SAMPLE / 2 or stride == 1
    assert torch.equal(sample_rows, sampled(count, 999))
    assert torch.equal(sample_rows, sampled(count, count))


@pytest.mark.parametrize("count", [700, SAMPLE + 1, 5000, 20011])
@pytest.mark.parametrize("ends", [[0.5], [0.03], [0.98], [0.2, 0.21, 0.9]])
def test_joined_samples_equal_the_sample_of_the_stream(count, ends):
    begins, parts = [0, *(int(end * count) for end in ends)], []
    for begin, end in zip(begins, [*begins[1:], count], strict=True):
        part = EvenSample(first=begin)
        for rows in torch.arange(begin, end).unsqueeze(1).split(64):
            part.add(rows)
        parts.append((part.positions, part.rows))
    assert torch.equal(EvenSample.joined(parts, count).rows.flatten(), sampled(count, 64))


def test_samples_cover_the_positions_of_a_window():
    """Samples of every 256th token would hold only 8 positions of windows of 2048."""
    sample_rows = sampled(128 * 2048, 8 * 2048)
    assert len(sample_rows) == SAMPLE
    positions = (sample_rows % 2048).unique()
    assert len(positions) > 0.7 * SAMPLE  # of 1024 drawn at random, 806 differ
    assert len((sample_rows % 256).unique()) > 240  # positions within a block
    assert not torch.equal(sample_rows, sampled(128 * 2048, 8 * 2048, seed=1))


@pytest.mark.parametrize("n", [7, BLOCK, 2 * BLOCK + 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_second_moment_in_blocks_equals_the_product(n, dtype):
    accumulator, x = (
        Accumulator([("mlp_in", "second"), BLOCK_INFLUENCE]),
        torch.randn(4, 5, n).to(dtype),
    )
    for batch in x.split(2):
        accumulator.observe("mlp_in", batch)
        accumulator.observe_block(batch, batch)
    second = accumulator.moments().second("mlp_in")
    rows = x.flatten(0, 1).double()
    assert second.dtype == torch.float64
    torch.testing.assert_close(second, rows.mT @ rows / 20, rtol=0, atol=1e-6)
    torch.testing.assert_close(second, second.mT, rtol=0, atol=1e-6)


def moments_at(tap_rows: torch.Tensor, *statistics: str) -> Moments:
    accumulator = Accumulator([("mlp_in", name) for name in statistics] + [BLOCK_INFLUENCE])
    for batch in tap_rows.split(512):
        accumulator.observe("mlp_in", batch)
        accumulator.observe_block(batch, batch)
    return accumulator.moments()


def test_sums_of_squares_of_float16_activations_do_not_overflow():
    rows = torch.randn(2048, 5)
    rows[:, 0] += 6  # the sum of squares exceeds the largest float16 number, 65,504
    rows[7, 1] = 300  # its square exceeds it as well
    result = moments_at(rows.half(), "second", "square", "mean", "abs")
    expected = rows.half().double()
    torch.testing.assert_close(
        result.second("mlp_in"), expected.mT @ expected / 2048, rtol=1e-5, atol=0
    )
    torch.testing.assert_close(result.square("mlp_in"), (expected**2).mean(0), rtol=1e-5, atol=0)


@pytest.mark.parametrize("sigmas", [50, 1000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_channel_with_a_large_mean_keeps_its_variance(dtype, sigmas):
    rows = torch.randn(4096, 3)
    rows = torch.stack([sigmas + rows[:, 0], rows[:, 1] - sigmas, rows[:, 2]], 1).to(dtype)
    covariance = moments_at(rows, "second", "mean").centered("mlp_in")
    expected = rows.double().mT.cov(correction=0)
    # sums of 4,096 products in float32 have rounding errors of about 1e-6, depending on the
    # processor
    torch.testing.assert_close(covariance, expected, rtol=0, atol=1e-5 * float(expected.max()))


@pytest.mark.parametrize("n", [7, 2 * BLOCK + 9])
@pytest.mark.parametrize("weighted", [False, True])
def test_centered_rows_give_the_second_moment_of_the_rows(n, weighted):
    rows = torch.randn(6, 5, n) + 3 * torch.randn(n)
    weights = torch.rand(6, 5) if weighted else torch.ones(6, 5)
    weights[2:4] = 0 if weighted else 1  # an expert without tokens in a batch
    accumulator = Accumulator([("mlp_in", "second"), ("mlp_in", "mean"), BLOCK_INFLUENCE])
    for batch, scale in zip(
        [*rows.split(2), rows[:0]], [*weights.split(2), weights[:0]], strict=True
    ):
        accumulator.observe("mlp_in", batch, scale.flatten() if weighted else None)
        accumulator.observe_block(batch, batch)
    flat, scale = rows.flatten(0, 1).double(), weights.flatten().double()
    moments = accumulator.moments()
    expected = (flat * scale[:, None]).mT @ flat / 30
    torch.testing.assert_close(moments.second("mlp_in"), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        moments.second("mlp_in"), moments.second("mlp_in").mT, rtol=0, atol=1e-12
    )
    torch.testing.assert_close(moments.mean("mlp_in"), (flat * scale[:, None]).sum(0) / 30)
