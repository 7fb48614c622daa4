"""A new policy with a new kind of evidence, which takes a file and two rows of tables.

Measurement, allocation, cache keys of the page and errors follow from the rows.
"""

import pytest
import torch

import lrcore
from lrcore.compression.evidence.kind import EvidenceKind
from lrcore.compression.evidence.measure import EVIDENCE
from lrcore.models.layers import read_layer
from lrcore.ranks.policies import POLICIES
from lrcore.ranks.policies.policy import Policy
from workbench.state.keys import analysis_recipe, factor_key

CALLS = []


def weight_norms(model, factors, recipe, progress) -> list[float]:
    """Return the evidence: the largest weight of each layer."""
    CALLS.append(recipe.policy)
    layers = [read_layer(model.network, i).matrices() for i in range(len(factors.layers))]
    return [max(float(p.weight.abs().max()) for p in layer.values()) for layer in layers]


def by_norm(evidence, budget, options) -> dict:
    """Return target shares, larger for layers with large weights."""
    norms = evidence.get("norms")
    largest = max(norms)
    return {slot: budget.keep * norms[slot[0]] / largest for slot in evidence.spectra}


@pytest.fixture(params=[False, True], ids=["every budget", "one budget"])
def one_budget(request, monkeypatch) -> bool:
    kind = EvidenceKind("norms", "Largest weight of every layer.", weight_norms, request.param)
    monkeypatch.setitem(EVIDENCE, "norms", kind)
    monkeypatch.setitem(POLICIES, "by_norm", Policy("by_norm", "A toy.", by_norm, needs="norms"))
    CALLS.clear()
    return request.param


def test_new_policy_with_new_evidence_works_everywhere(tiny_llama, story_file, one_budget) -> None:
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(
        model=str(tiny_llama),
        data=str(story_file),
        samples=4,
        seq_len=32,
        policy="by_norm",
        ratio=0.3,
    )
    plain = lrcore.prepare(model, recipe.with_(policy="uniform"))
    with pytest.raises(lrcore.InputError, match="Policy 'by_norm' needs evidence 'norms'"):
        lrcore.allocate(plain, recipe)
    factors = lrcore.measure_evidence(model, plain, recipe)
    assert lrcore.measure_evidence(model, factors, recipe) is factors
    assert CALLS == ["by_norm"]
    assert lrcore.allocate(factors, recipe).summary()["achieved"] >= 0.3
    changed = recipe.with_(ratio=0.4)
    if one_budget:
        with pytest.raises(lrcore.InputError, match="another budget"):
            lrcore.allocate(factors, changed)
    else:
        assert lrcore.allocate(factors, changed).summary()["achieved"] >= 0.4
    with torch.inference_mode():
        logits = lrcore.compress(model, recipe, plain).network(torch.arange(3, 35)[None]).logits
    assert torch.isfinite(logits).all()
    # in the page, factors with this evidence are a separate object
    assert factor_key(recipe) != factor_key(recipe.with_(policy="uniform"))
    assert (factor_key(recipe) != factor_key(changed)) == one_budget
    assert analysis_recipe(recipe).policy == "by_norm"
    assert factor_key(analysis_recipe(recipe)) == factor_key(recipe)
    row = next(row for row in lrcore.list_policies() if row["name"] == "by_norm")
    assert (row["needs"], row["one_budget"]) == ("norms", one_budget)


def test_evidence_of_all_policies_is_in_the_table() -> None:
    needed = {row.needs for row in POLICIES.values()}
    assert needed | {"latency", "quantization"} == EVIDENCE.keys()  # these belong to budgets
