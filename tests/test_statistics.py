"""Samples of a stream: how many, from where."""

import pytest
import torch

from lrcore.statistics import BLOCK, BLOCK_INFLUENCE, SAMPLE, Accumulator, EvenSample


@pytest.mark.parametrize("count", [1, 700, SAMPLE, SAMPLE + 1, 5000, 20011])
@pytest.mark.parametrize("batch", [64, 999])
def test_a_sample_is_spread_evenly_whatever_the_batches(count, batch):
    sample = EvenSample()
    for rows in torch.arange(count).unsqueeze(1).split(batch):
        sample.add(rows)
    kept = sample.rows.flatten()
    stride = max(int(kept[1] - kept[0]), 1) if len(kept) > 1 else 1
    assert torch.equal(kept, torch.arange(0, count, stride))
    assert len(kept) <= SAMPLE
    assert len(kept) > SAMPLE / 2 or stride == 1


@pytest.mark.parametrize("n", [7, BLOCK, 2 * BLOCK + 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_second_moment_formed_in_blocks_is_the_whole_product(n, dtype):
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
    torch.testing.assert_close(
        second, rows.mT @ rows / 20, rtol=0, atol=1e-6 if dtype == torch.float32 else 2e-2
    )
    torch.testing.assert_close(second, second.mT, rtol=0, atol=1e-6)
