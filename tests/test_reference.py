"""Results measured by others on a published model; see the README of the reference folder."""

import pytest

import lrcore

pytestmark = pytest.mark.one_in(2)

A3 = {0.1: 10.941, 0.2: 36.480, 0.3: 50.359, 0.4: 122.83, 0.5: 147.89}
MODEGPT = {0.1: 10.166, 0.2: 29.796, 0.3: 37.107, 0.4: 112.04, 0.5: 139.23}
ALONE = {
    "a3": {"qk": 15.699, "ov": 9.691, "mlp": 21.234},
    "modegpt": {"qk": 15.699, "ov": 9.722, "mlp": 16.087},
}


@pytest.fixture(scope="module")
def reference_setup(reference):
    """Return model, recipe and factorizations for all results."""
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


def test_the_dense_perplexity_is_reproduced(reference_setup, perplexity) -> None:
    assert perplexity(reference_setup[0]) == pytest.approx(8.0763, rel=1e-4)


@pytest.mark.parametrize(
    ("method", "ratio", "expected"),
    [("a3", *pair) for pair in A3.items()] + [("modegpt", *pair) for pair in MODEGPT.items()],
)
def test_perplexities_of_uniform_compression_are_reproduced(
    reference_setup, perplexity, method: str, ratio: float, expected: float
) -> None:
    model, recipe, factors = reference_setup
    recipe = recipe.with_(method=method, ratio=ratio)
    assert perplexity(lrcore.compress(model, recipe, factors[method])) == pytest.approx(
        expected, rel=1e-2
    )


@pytest.mark.parametrize(
    ("method", "component", "expected"),
    [(m, *pair) for m, components in ALONE.items() for pair in components.items()],
)
def test_perplexities_of_compressing_a_single_component_are_reproduced(
    reference_setup, perplexity, method: str, component: str, expected: float
) -> None:
    model, recipe, factors = reference_setup
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
    # all ranks are given, so any budget is valid that they satisfy
    small = lrcore.compress(
        model, recipe.with_(ratio=0.001, rank_overrides=full_ranks | ranks), factors[method]
    )
    assert perplexity(small) == pytest.approx(expected, rel=1e-2)
