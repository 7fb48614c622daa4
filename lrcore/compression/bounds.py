"""What MoDeGPT's propositions promise for a plan, beside what it really loses in each layer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import InputError
from ..methods.bounds import BOUNDS, NEEDS
from ..models.layers import clone, read_layer
from ..models.load import LoadedModel
from ..models.stream import LayerStream
from ..plan import RankPlan
from ..progress import Progress, silent
from .factorise import Factorisation


def bounds(
    model: LoadedModel, factors: Factorisation, plan: RankPlan, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Rows layer, component, rank, error, bound, statement for every slot of a MoDeGPT plan; see
    lrcore/methods/bounds.py for the units.

    bound is None where no statement of the paper bounds the error. One more pass over the
    calibration tokens, for the correlations of rotated queries and keys; errors are those of the
    dense model's layers (calibration "independent").
    Raises InputError for any other method: only MoDeGPT's paper states bounds.
    """
    if factors.method != "modegpt":
        raise InputError(
            "Error bounds exist for method 'modegpt' only (its Propositions 1 to 3); got "
            f"'{factors.method}'."
        )
    progress, stream, rows = (
        progress or silent,
        LayerStream(clone(model.network), factors.calibration.tokens),
        [],
    )
    for index, own in enumerate(factors.layers):
        progress("bounds", index, len(factors.layers))
        moments, layer = stream.run(index, NEEDS), read_layer(model.network, index)
        for name, factor in own.items():
            rank = plan.ranks[index, name]
            whole = rank >= factor.cost.full
            error, bound, statement = (
                (0.0, 0.0, "untouched") if whole else BOUNDS[name](layer, moments, factor, rank)
            )
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


def with_bounds(model: LoadedModel, rows: Sequence[Mapping[str, Any]]) -> LoadedModel:
    """A compressed model whose last compression also says the bounds of its slots, rows as `bounds`
    gives them.
    """
    *before, step = model.history
    return replace(model, history=(*before, replace(step, bounds=tuple(rows))))
