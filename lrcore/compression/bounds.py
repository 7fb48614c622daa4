"""The error bounds of MoDeGPT's propositions for a plan, beside the actual errors of each layer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import InputError
from ..history import Compressed
from ..methods.bounds import BOUNDS, NEEDS
from ..models.layers import clone, read_exact
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
    progress = progress or silent
    rows: list[dict[str, Any]] = []
    stream = LayerStream(clone(model.network), factors.calibration.tokens)
    for index, layer_factors in enumerate(factors.layers):
        progress("bounds", index, len(factors.layers))
        moments, layer = stream.run(index, NEEDS), read_exact(model.network, index)
        assert moments is not None  # there are needs
        for name, factor in layer_factors.items():
            rank = plan.ranks[index, name]
            whole = rank >= factor.cost.full
            bound_of: Any = BOUNDS[name]
            error, bound, statement = (
                (0.0, 0.0, "untouched") if whole else bound_of(layer, moments, factor, rank)
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
    """The compressed model with the bounds of its slots in the last step of its history; rows as
    `bounds` returns them.
    """
    *before, step = model.history
    assert isinstance(step, Compressed)  # bounds are of a compression
    return replace(model, history=(*before, replace(step, bounds=tuple(rows))))
