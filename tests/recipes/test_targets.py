"""Targets: ranks that a target runs natively, and their exports."""

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import CONFIGS, noisy
from transformers import AutoModelForCausalLM

import lrcore
from lrcore.checkpoints.export import check_target
from lrcore.checkpoints.gguf.gguf_fit import GGUF_FAMILIES
from lrcore.cli import main
from lrcore.compression.solve.factorize import Factorization
from lrcore.methods import METHODS
from lrcore.recipes.targets import DEFAULT, STRUCTURES, TARGETS

NAMES = [name for name in TARGETS if name != DEFAULT]
DOCUMENT = Path(__file__).parents[2] / "docs" / "serving.md"


@pytest.fixture(scope="module")
def dense(tiny_llama):
    return lrcore.load(str(tiny_llama))


@pytest.fixture(scope="module")
def prepared(dense, story_file):
    """Return a function from a method to its recipe and cached factors."""
    made: dict[str, Factorization] = {}
    base = lrcore.Recipe(
        dense.name, data=str(story_file), samples=4, seq_len=32, ratio=0.2, policy="energy"
    )

    def of(method: str, **fields) -> tuple[lrcore.Recipe, Factorization]:
        recipe = base.with_(method=method, **fields)
        if method not in made:
            made[method] = lrcore.prepare(dense, recipe.with_(policy="probed"))
        return recipe, made[method]

    return of


def test_documentation_contains_the_table_of_targets() -> None:
    words = DOCUMENT.read_text(encoding="utf-8")
    for row in TARGETS.values():
        cells = ["yes" if structure in row.native else "-" for structure in STRUCTURES]
        line = [f"`{row.name}`", "the same" if row.even else "any", *cells]
        assert f"| {' | '.join(line)} |" in words


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["a3", "fused", "svd_llm", "care"])
def test_plan_uses_only_structures_of_its_target(method, name, prepared) -> None:
    target, row = TARGETS[name], METHODS[method]
    recipe, factors = prepared(method, target=name, ratio=0.1)
    fits = {row.structure(slot, factors.options) for _, slot in factors.spectra} & target.native
    if not fits:
        with pytest.raises(
            lrcore.InputError, match=rf"Target {name} runs .*Choose a method that fits"
        ):
            lrcore.allocate(factors, recipe)
        return
    plan = lrcore.allocate(factors, recipe)
    below = {slot: rank for slot, rank in plan.ranks.items() if rank < plan.spectra[slot].cost.full}
    assert below
    assert {row.structure(slot, factors.options) for _, slot in below} <= target.native
    assert plan.account.achieved >= 0.1 - 1e-9
    if target.even:
        by_component: dict[str, set[int]] = {}
        for (_, component), rank in plan.ranks.items():
            by_component.setdefault(component, set()).add(rank)
        assert all(len(ranks) == 1 for ranks in by_component.values())


def test_even_plan_is_the_widest_within_its_budget(prepared) -> None:
    recipe, factors = prepared("a3", target="transformers-stock")
    plan = lrcore.allocate(factors, recipe)
    limit = (1 - 0.2) * factors.shape.decoder_linear
    assert plan.account.model.decoder_parameters <= limit
    cost = factors.spectra[0, "mlp"].cost
    step = sum(
        cost.parameters(plan.ranks[s] + 1) - cost.parameters(plan.ranks[s]) for s in plan.ranks
    )
    assert plan.account.model.decoder_parameters + step > limit


@pytest.mark.parametrize("name", ["transformers", "vllm"])
def test_method_without_a_slot_in_the_model_raises(name, prepared) -> None:
    recipe, factors = prepared("llm_pruner", target=name)
    without_slots = replace(factors, evidence=replace(factors.evidence, spectra={}))
    sentence = r"cannot compress this model.*heads, mlp.*always apply: svd, svd_llm"
    with pytest.raises(lrcore.InputError, match=sentence):
        lrcore.allocate(without_slots, recipe)


def test_ranks_set_by_hand_must_run_on_the_target(prepared) -> None:
    recipe, factors = prepared("a3", target="vllm")
    sentence = "vllm does not run narrower heads: set no rank or ratio"
    with pytest.raises(lrcore.InputError, match=sentence):
        lrcore.allocate(factors, recipe.with_(rank_overrides={"0.ov": 4}))
    with pytest.raises(lrcore.InputError, match="same rank of mlp in all layers"):
        lrcore.allocate(
            factors, recipe.with_(target="transformers-stock", rank_overrides={"0.mlp": 20})
        )


def test_probed_uses_the_forms_of_the_target(prepared) -> None:
    recipe, factors = prepared("fused", policy="probed", target="vllm", ratio=0.3)
    plan = lrcore.allocate(factors, recipe)
    assert not {"qk", "ov"} & {component for _, component in plan.ranks}
    components = list(dict.fromkeys(component for _, component in plan.ranks))
    assert components[:3] == ["joint_qk", "v", "o"]


@pytest.mark.parametrize(
    ("method", "name", "out"),
    [("a3", "transformers-stock", "stock"), ("care", "mla", "youtu")],
)
def test_export_writes_the_format_of_the_target(
    method, name, out, prepared, dense, tmp_path
) -> None:
    """Stock classes load the export without remote code, in the sizes of the plan."""
    recipe, factors = prepared(method, target=name, policy="uniform")
    small = lrcore.compress(dense, recipe, factors)
    lrcore.save(small, tmp_path / "checkpoint")
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / out)]) == 0
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / out, trust_remote_code=False)
    assert type(loaded).__module__.startswith("transformers.")
    if name == "transformers-stock":
        assert loaded.num_parameters() == small.account.model.parameters
    else:
        assert loaded.config.kv_lora_rank == 1 + next(iter(small.history[-1].ranks)).rank


def test_standard_export_overrides_the_target(prepared, dense, tmp_path) -> None:
    recipe, factors = prepared("a3", target="llama.cpp")
    lrcore.save(lrcore.compress(dense, recipe, factors), tmp_path / "checkpoint")
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "out"), "--standard"]) == 0
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=False)
    assert reloaded.config.model_type == "llama"


def test_methods_that_add_biases_unsupported_by_the_target_raise(story_file) -> None:
    """The error comes before any work and names suitable methods; a llama supports the biases."""
    tokenizer = lrcore.load("demo-llama").tokenizer
    config = CONFIGS["qwen3"] | {"vocab_size": len(tokenizer)}
    model = lrcore.load(noisy("qwen3", config), tokenizer)
    recipe = lrcore.Recipe(data=str(story_file), target="llama.cpp")
    for method in ("fused", "flap"):
        with pytest.raises(lrcore.InputError, match=r"adds biases.*qwen3.*Suitable methods: .*a3"):
            lrcore.prepare(model, recipe.with_(method=method))
    with pytest.raises(lrcore.InputError, match=r"removes heads.*qwen3.*Suitable methods: .*a3"):
        lrcore.prepare(model, recipe.with_(method="llm_pruner"))
    check_target(model, recipe.with_(method="a3"))
    check_target(lrcore.load("demo-llama"), recipe.with_(method="fused"))


def test_families_of_a_common_width_in_gguf_files_get_even_ranks(story_file) -> None:
    """Otherwise the export pads the layers to the widest, and the file saves nothing."""
    tokenizer = lrcore.load("demo-llama").tokenizer
    config = CONFIGS["qwen3"] | {"vocab_size": len(tokenizer)}
    model = lrcore.load(noisy("qwen3", config), tokenizer)
    recipe = lrcore.Recipe(data=str(story_file), samples=4, seq_len=32, ratio=0.2, method="a3")
    factors = lrcore.prepare(model, recipe)
    recipe = recipe.with_(target="llama.cpp", policy="energy")
    widths = {
        rank for (_, name), rank in lrcore.allocate(factors, recipe).ranks.items() if name == "mlp"
    }
    assert len(widths) == 1
    assert TARGETS["llama.cpp"].uneven_families == {
        name for name, family in GGUF_FAMILIES.items() if family.plain
    }


def test_models_without_a_fit_for_the_target_raise_before_any_work(tiny_opt, story_file) -> None:
    model = lrcore.load(str(tiny_opt))
    recipe = lrcore.Recipe(str(tiny_opt), data=str(story_file), samples=4, seq_len=24)
    for name in ("llama.cpp", "mla"):
        with pytest.raises(lrcore.InputError, match="its family is opt"):
            lrcore.prepare(model, recipe.with_(target=name))
