"""Reproducibility of compressed models with different numbers of threads."""

from copy import deepcopy

import pytest
import torch
from tiny_models import CONFIGS, copy_tokenizer, noisy

import lrcore
from lrcore.methods import METHODS

# Wide enough that threads share the products of a layer. Three threads add in a different order
# than one; even numbers of threads may not.
WIDE = {
    **CONFIGS["llama"],
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 1,
    "head_dim": 32,
}
COUNTS = (1, 2, 3, 3)
TOKENS = torch.randint(3, 300, (2, 32), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def wide(tmp_path_factory, tiny_llama) -> lrcore.LoadedModel:
    folder = tmp_path_factory.mktemp("wide")
    noisy("llama", WIDE).save_pretrained(folder)
    copy_tokenizer(tiny_llama, folder)
    return lrcore.load(str(folder))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_thread_counts_change_at_most_a_millionth_and_equal_counts_nothing(
    wide, story_file, tmp_path, monkeypatch, method
) -> None:
    recipe = lrcore.Recipe(data=str(story_file), samples=8, seq_len=64, method=method, ratio=0.1)
    before, made = torch.get_num_threads(), []
    try:
        for number, count in enumerate(COUNTS):
            torch.set_num_threads(count)
            # use a new cache, so that the calibration runs again
            monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / str(number)))
            made.append(lrcore.compress(wide, recipe))
    finally:
        torch.set_num_threads(before)
    last, repeated = (model.network.state_dict() for model in made[-2:])
    assert all(torch.equal(value, repeated[name]) for name, value in last.items())
    assert len({model.fingerprint for model in made}) == 1
    with torch.inference_mode():
        # compare logits in float64, because equal products can have different bases
        reference, *remaining = (deepcopy(m.network).double()(TOKENS).logits for m in made[:-1])
    for output in remaining:
        assert float((reference - output).abs().max()) <= 1e-6 * float(reference.abs().max())
