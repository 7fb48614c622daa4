"""Second moments on disk."""

from weakref import ref

import pytest
import torch

from lrcore.compression.calibration import moment_files
from lrcore.compression.calibration.layouts import pack, unpack
from lrcore.compression.calibration.moment_files import MomentsFile, read_moments, write_moments
from lrcore.layers.statistics import Accumulator, Moments


def observed_moments(x: torch.Tensor) -> Moments:
    """Return second moments and a mean of a batch x [n, size]."""
    accumulator = Accumulator({("attn_in", "second"), ("attn_in", "mean"), ("mlp_in", "second")})
    accumulator.observe("attn_in", x)
    accumulator.observe("mlp_in", x)
    accumulator.observe_block(x, x)
    return accumulator.moments()


@pytest.mark.parametrize("size", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("centered", [False, True])
def test_unpack_reverses_pack(size, centered):
    x = torch.randn(200, size, dtype=torch.float64) + 3
    second, mean = x.mT @ x / len(x), x.mean(0) if centered else None
    numbers = pack(second, mean, torch.float64)
    assert torch.allclose(unpack(numbers, mean, size), second, rtol=1e-14, atol=0)
    assert len(numbers) <= size * (size + 32) / 2


def test_float32_keeps_the_variance_of_inputs_with_a_large_mean():
    x = torch.randn(4000, 40, dtype=torch.float64) + 1000
    second, mean = x.mT @ x / len(x), x.mean(0)
    back = unpack(pack(second, mean, torch.float32), mean, 40)
    covariance = second - torch.outer(mean, mean)
    error = (back - torch.outer(mean, mean) - covariance).abs().max()
    assert error < 1e-6
    uncentered = unpack(pack(second, None, torch.float32), None, 40)
    assert (uncentered - second).abs().max() > 1e-2


def test_file_takes_a_quarter_of_the_bytes_and_reads_back_the_moments(tmp_path):
    moments = observed_moments(torch.randn(500, 512) + 2)
    write_moments(moments, tmp_path / "layer")
    assert (tmp_path / "layer").stat().st_size < 0.3 * 2 * 512 * 512 * 8
    read, moments_file = read_moments(tmp_path / "layer"), MomentsFile.at(tmp_path / "layer")
    assert read.values.keys() == moments.values.keys()
    for need, value in moments.values.items():
        assert read.values[need].dtype == value.dtype
        assert torch.allclose(read.values[need], value, rtol=1e-6, atol=1e-6)
        assert torch.equal(moments_file.read(need), read.values[need])
    assert torch.equal(read.centered("attn_in"), read.centered("attn_in").mT)
    write_moments(moments, tmp_path / "exact", torch.float64)
    exact = read_moments(tmp_path / "exact")
    assert torch.allclose(exact.second("mlp_in"), moments.second("mlp_in"), rtol=1e-15, atol=0)


def test_large_statistics_are_cached_only_while_referenced(tmp_path, monkeypatch):
    monkeypatch.setattr(moment_files, "MAX_CACHED_BYTES", 100)
    x = torch.randn(40, 6, dtype=torch.float64)
    second, mean = x.mT @ x / 40, x.mean(0)
    values = {("t", "second"): second, ("t", "mean"): mean, ("t", "square"): second.diagonal()}
    write_moments(Moments(values, 40), tmp_path / "layer")
    read = read_moments(tmp_path / "layer")
    assert set(read.values) == set(values)
    held = read.second("t")
    assert read.second("t") is held
    assert read.mean("t") is read.mean("t")
    gone = ref(held)
    del held
    assert gone() is None
    assert torch.allclose(read.second("t"), second, rtol=1e-6)
    with pytest.raises(KeyError):
        read.second("another")
