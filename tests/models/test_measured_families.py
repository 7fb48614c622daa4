"""Local errors, contributions and costs of families that differ from Llama."""

from pathlib import Path

import pytest
import torch
from tiny_models import tiny

from lrcore.evaluation.contributions import mix_models
from lrcore.evaluation.cost import measure_cost
from lrcore.evaluation.local_errors import _layer_errors
from lrcore.methods import METHODS, truncate
from lrcore.models.architectures import decoder_layers
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.load import LoadedModel
from lrcore.models.stream import LayerStream

TOKENS = torch.randint(3, 300, (3, 24), generator=torch.Generator().manual_seed(5))


def pair(family):
    """Return a tiny model, and the model with about 70 % of the ranks of A3."""
    network = tiny(family)
    small, stream = clone(network), LayerStream(network, TOKENS, batch=2)
    for index in range(len(decoder_layers(network))):
        layer = read_layer(small, index)
        factors = METHODS["a3"].factor(layer, stream.run(index, METHODS["a3"].needs))
        offered = {
            name: [rank for rank in factor.cost.ranks() if rank <= factor.cost.cap]
            for name, factor in factors.items()
        }
        write_layer(
            small,
            truncate(
                layer,
                factors,
                {
                    name: ranks_offered[int(0.7 * len(ranks_offered))]
                    for name, ranks_offered in offered.items()
                },
            ),
        )
    return [LoadedModel(family, net, None, family, Path("nowhere")) for net in (network, small)]


@pytest.mark.parametrize(
    ("family", "seen"),
    [
        ("gpt2", {"scores", "ov", "attention", "mlp"}),
        ("gemma2", {"ov", "attention", "mlp"}),  # scores are capped, outside torch's attention
        ("bloom", {"ov", "attention", "mlp"}),
        ("phi3", {"scores", "ov", "attention", "mlp"}),
        ("mixtral", {"scores", "ov", "attention"}),  # experts
        ("qwen2", {"scores", "ov", "attention", "mlp"}),
    ],
)
@torch.inference_mode()
def test_parts_of_a_family_are_measured(family, seen):
    dense, small = pair(family)
    complete = mix_models(dense, small, ("qk", "ov", "mlp"))
    logits = [model.network(TOKENS).logits for model in (small, complete)]
    assert torch.allclose(*logits, atol=1e-4)
    only, stream = mix_models(dense, small, ("ov",)), LayerStream(dense.network, TOKENS, batch=2)
    for index in range(len(decoder_layers(dense.network))):
        errors = _layer_errors([model.network for model in (dense, small, only)], index, stream)
        assert errors.keys() == seen
        assert all(0 <= value < 1 for value in errors.values())
        assert errors["ov"] > 0


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "bloom", "phi3", "cohere2", "glm4"])
def test_measured_flops_of_a_family_equal_the_formula(family):
    for model in pair(family):
        result = measure_cost(model, context=20)
        assert result.flops_prefill == pytest.approx(result.flops_formula, rel=0.01)
