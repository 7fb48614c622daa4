"""Samples of a stream: how many, from where."""

import pytest
import torch

from lrcore.statistics import SAMPLE, EvenSample


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
