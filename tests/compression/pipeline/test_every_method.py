"""Methods of all structures on the demo models and on a published model.

The results are smaller, finite, and bit-identical after loading.
"""

import pytest
import torch
from tiny_models import STRUCTURES

import lrcore

pytestmark = [pytest.mark.slow, pytest.mark.one_in(2)]
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5)
ENDS = (0.1, 0.5)
WINDOWS = torch.arange(64).view(2, 32)


@pytest.fixture(scope="module", params=["demo-llama", "demo-opt", "stories260K"])
def subject(request):
    """Return a model, a recipe and ratios; only the smallest model uses all ratios."""
    if request.param != "stories260K":
        recipe = lrcore.Recipe(model=request.param, samples=8, seq_len=128)
        return lrcore.load(recipe.model), recipe, ENDS
    folder = request.getfixturevalue("reference")
    data = str(folder / "text/tinystories.calibration.txt")
    recipe = lrcore.Recipe(
        model=str(folder / "models/stories260K"), data=data, samples=8, seq_len=128
    )
    return lrcore.load(recipe.model), recipe, RATIOS


@pytest.mark.parametrize("method", STRUCTURES)
@torch.inference_mode()
def test_ratios_from_10_to_50_percent_shrink_the_model_and_reload(subject, method, tmp_path):
    model, base, ratios = subject
    base = base.with_(method=method)
    factors = lrcore.factorize(model, lrcore.calibrate(model, base), method)
    sizes = []
    for ratio in ratios:  # save only the ends of the range; the rest have the same tensors
        small = lrcore.compress(model, base.with_(ratio=ratio), factors)
        assert small.account.to_dict()["achieved"] >= ratio - 1e-9
        logits = small.network(WINDOWS).logits
        assert torch.isfinite(logits).all()
        sizes.append((small.size.parameters, small.size.kv_values))
        if ratio not in ENDS:
            continue
        back = lrcore.load(str(lrcore.save(small, tmp_path / str(ratio))))
        assert torch.equal(logits, back.network(WINDOWS).logits)
        assert back.size == small.size
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(ratios)
