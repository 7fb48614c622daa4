"""Layouts of statistics equal the collected statistics for different layer types.

tests/fuzz/test_random_models.py tests all families on random models.
"""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import tiny

from lrcore.compression.analyze import cached_values, layer_values
from lrcore.compression.calibration.calibrate import all_needs
from lrcore.compression.calibration.gradients import PASSES, collect
from lrcore.compression.calibration.layouts import activation_layout, gradient_layout
from lrcore.compression.calibration.moment_files import is_kept, layer_file, write_moments
from lrcore.models.architectures import decoder_layers
from lrcore.models.layers import clone
from lrcore.models.stream import LayerStream
from lrcore.system.progress import silent

TOKENS = torch.arange(24).view(2, 12)
FAMILIES = (
    "llama",
    "gpt2",
    "gptj",
    "falcon",
    "gemma3n_text",
    "gpt_oss",
    "llama4_text",
    "deepseek_v3",
)
UNKNOWN_WIDTHS = {
    "q_rotated",
    "k_rotated",
    "attended_keys",
}  # taps without a projection that gives their width


@pytest.mark.parametrize("family", FAMILIES)
def test_collected_activations_match_the_layout(family, tmp_path):
    """Also check the spectra of an analysis."""
    network = tiny(family)
    stream, needs = LayerStream(clone(network), TOKENS), all_needs()
    model = SimpleNamespace(network=network)
    for index in range(len(decoder_layers(network))):
        moments = stream.run(index, needs)
        write_moments(moments, layer_file(tmp_path, index))
        layout = activation_layout(network, index, needs)
        assert is_kept(tmp_path, index, layout=layout)
        assert {tap for tap, _ in moments.values.keys() - layout.keys()} <= UNKNOWN_WIDTHS
        calibration = SimpleNamespace(moments=lambda _, gradient_pass=moments: gradient_pass)
        values = layer_values(model, calibration, index)
        save_file(values, layer_file(tmp_path, index))
        cached = cached_values(model, tmp_path, index)
        assert cached is not None
        assert cached.keys() == values.keys()


@pytest.mark.parametrize("family", ["gpt2", "deepseek_v3"])
def test_collected_gradients_match_the_layout(family, tmp_path):
    network = tiny(family)
    for name, gradient_pass in PASSES.items():
        for index, moments in enumerate(collect(network, TOKENS, silent, gradient_pass)):
            write_moments(moments, layer_file(tmp_path / name, index))
            layout = gradient_layout(network, index, gradient_pass.statistics)
            assert layout.keys() == moments.values.keys()
            assert is_kept(tmp_path / name, index, layout=layout)
