"""Error bounds of MoDeGPT's propositions for a plan, and the actual errors of each layer."""

from typing import Any

from ...methods.error_bounds import BOUNDS, NEEDS
from ...models.layers import clone, read_exact
from ...models.load import LoadedModel
from ...models.stream import LayerStream
from ...ranks.plan import RankPlan
from ...system.errors import InputError
from ...system.progress import Progress, silent
from ..solve.factorize import Factorization


def check_has_bounds(method: str) -> None:
    """Raise InputError for any method but MoDeGPT."""
    if method != "modegpt":
        raise InputError(
            "Error bounds exist only for method 'modegpt' (its Propositions 1 to 3); got "
            f"'{method}'."
        )


def plan_bounds(
    model: LoadedModel, factors: Factorization, plan: RankPlan, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Return a row per slot of a MoDeGPT plan: layer, component, rank, error, bound, statement.

    See lrcore/methods/error_bounds.py for the units. bound is None if no statement of the paper
    bounds the error. Takes a further pass over the calibration tokens, for the correlations of
    rotated queries and keys. The errors are those of the dense model's layers (calibration mode
    "independent").

    Raises InputError for any other method: only MoDeGPT's paper has such bounds.
    """
    check_has_bounds(factors.method)
    progress = progress or silent
    rows: list[dict[str, Any]] = []
    stream = LayerStream(clone(model.network), factors.calibration.tokens)
    for index, layer_factors in enumerate(factors.layers):
        progress("bounds", index, len(factors.layers))
        moments, layer = stream.run(index, NEEDS), read_exact(model.network, index)
        assert moments is not None  # NEEDS is not empty
        for name, factor in layer_factors.items():
            rank = plan.ranks[index, name]
            compute_bound: Any = BOUNDS[name]
            if rank >= factor.cost.full:
                error, bound, statement = 0.0, 0.0, "untouched"
            else:
                error, bound, statement = compute_bound(layer, moments, factor, rank)
            rows.append(
                {
                    "layer": index,
                    "component": name,
                    "rank": rank,
                    "error": error,
                    "bound": bound,
                    "statement": statement,
                }
            )
    progress("bounds", len(factors.layers), len(factors.layers))
    return rows
