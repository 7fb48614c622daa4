"""Standard exports of experts with a smaller common width."""

import pytest
import torch
from safetensors import safe_open
from tiny_models import family_folder
from transformers import AutoModelForCausalLM

import lrcore
from lrcore import InputError
from lrcore.compression.steps.step_settings import ExpertPruning

TOKENS = torch.randint(3, 300, (2, 16), generator=torch.Generator().manual_seed(5))


def names(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return sorted(file.keys())


def recipe_of(folder, story_file):
    return lrcore.Recipe(
        str(folder),
        data=str(story_file),
        samples=4,
        seq_len=32,
        method="a3",
        target="transformers-stock",
    )


@pytest.mark.parametrize("family", ["mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "gpt_oss"])
def test_experts_of_one_width_load_without_code(family, tiny_llama, story_file, tmp_path) -> None:
    """Layers without experts may have MLPs of a different width."""
    folder = family_folder(family, tiny_llama, tmp_path / "dense")
    small = lrcore.compress(lrcore.load(str(folder)), recipe_of(folder, story_file))
    assert small.history[-1].stock.qualifies
    lrcore.export(small, tmp_path / "standard", standard=True)
    assert names(tmp_path / "standard") == names(folder)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "standard", trust_remote_code=False)
    assert loaded.config.model_type == family
    assert loaded.num_parameters() == small.account.model.parameters
    with torch.inference_mode():
        logits = small.network(TOKENS).logits
        assert torch.allclose(loaded(TOKENS).logits, logits, atol=1e-5)


@pytest.mark.parametrize("family", ["ernie4_5_moe", "deepseek_v2", "deepseek_v3"])
def test_expert_widths_that_differ_from_shared_experts_are_refused(
    family, tiny_llama, story_file, tmp_path
) -> None:
    folder = family_folder(family, tiny_llama, tmp_path / "dense")
    with pytest.raises(
        InputError, match=r"width of shared experts in .* is derived from other sizes"
    ):
        lrcore.compress(lrcore.load(str(folder)), recipe_of(folder, story_file))


@pytest.mark.parametrize("family", ["ernie4_5_moe", "deepseek_v2", "deepseek_v3"])
def test_models_with_pruned_experts_and_shared_experts_load_without_code(
    family, tiny_llama, story_file, tmp_path
) -> None:
    folder = family_folder(family, tiny_llama, tmp_path / "dense")
    recipe = recipe_of(folder, story_file)
    small = lrcore.prune_experts(lrcore.load(str(folder)), recipe, ExpertPruning(2))
    lrcore.export(small, tmp_path / "standard", standard=True)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "standard", trust_remote_code=False)
    assert loaded.num_parameters() == small.size.parameters
    with torch.inference_mode():
        logits = small.network(TOKENS).logits
        assert torch.allclose(loaded(TOKENS).logits, logits, atol=1e-5)
