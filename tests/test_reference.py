"""Figures that somebody else measured, on a model that somebody else trained; see the reference
folder's README.
"""

import pytest

import lrcore

A3 = {0.1: 10.941, 0.2: 36.480, 0.3: 50.359, 0.4: 122.83, 0.5: 147.89}
MODEGPT = {0.1: 10.166, 0.2: 29.796, 0.3: 37.107, 0.4: 112.04, 0.5: 139.23}
ALONE = {
    "a3": {"qk": 15.699, "ov": 9.691, "mlp": 21.234},
    "modegpt": {"qk": 15.699, "ov": 9.722, "mlp": 16.087},
}


@pytest.fixture(scope="module")
def road(reference):
    """Model, recipe and factorisations, made once for all figures."""
    recipe = lrcore.Recipe(
        model=str(reference / "models/stories260K"),
        data=str(reference / "text/tinystories.calibration.txt"),
        samples=128,
        seq_len=256,
        sampling="first",
        rounding="nearest",
    )
    model = lrcore.load(recipe.model)
    calibration = lrcore.calibrate(model, recipe)
    return (
        model,
        recipe,
        {name: lrcore.factorize(model, calibration, name) for name in ("a3", "modegpt")},
    )


@pytest.fixture(scope="module")
def perplexity(reference):
    def measure(model) -> float:
        text = str(reference / "text/tinystories.evaluation.txt")
        return lrcore.evaluate(model, text, samples=128, seq_len=256, sampling="first").perplexity

    return measure


def test_dense(road, perplexity) -> None:
    assert perplexity(road[0]) == pytest.approx(8.0763, rel=1e-4)


@pytest.mark.parametrize(
    ("method", "ratio", "expected"),
    [("a3", *pair) for pair in A3.items()] + [("modegpt", *pair) for pair in MODEGPT.items()],
)
def test_uniform_compression(road, perplexity, method: str, ratio: float, expected: float) -> None:
    model, recipe, factors = road
    recipe = recipe.with_(method=method, ratio=ratio)
    assert perplexity(lrcore.compress(model, recipe, factors[method])) == pytest.approx(
        expected, rel=1e-2
    )


@pytest.mark.parametrize(
    ("method", "component", "expected"),
    [(m, *pair) for m, components in ALONE.items() for pair in components.items()],
)
def test_one_component_at_thirty_percent(
    road, perplexity, method: str, component: str, expected: float
) -> None:
    model, recipe, factors = road
    recipe = recipe.with_(method=method, ratio=0.3)
    plan = lrcore.allocate(factors[method], recipe)
    full_ranks = {
        f"{layer}.{name}": s.cost.full
        for (layer, name), s in plan.spectra.items()
        if name != component
    }
    ranks = {
        f"{layer}.{name}": rank for (layer, name), rank in plan.ranks.items() if name == component
    }
    # every rank is given, so the budget decides nothing; it only has to be one that the given ranks
    # meet
    small = lrcore.compress(
        model, recipe.with_(ratio=0.001, rank_overrides=full_ranks | ranks), factors[method]
    )
    assert perplexity(small) == pytest.approx(expected, rel=1e-2)
