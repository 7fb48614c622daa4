"""Evidence "probes": the predicted increase in loss of each slot at each rank. Ours; in no paper.

The loss curves of the slots have different units (scores, outputs of attention, outputs of the
MLP). Probes convert them to nats/token: truncate a slot to a few ranks and measure the divergence
of the model's predictions from the dense model's, on windows that the moments have not seen
(divergence.py). Each curve is scaled to the probes (curve.py). Layers before the slot are not run
again.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from ...layers.spectra import Slot
from ...models.load import LoadedModel
from ...ranks.evidence import Probe, Probes
from ...recipes.recipe import Recipe
from ...system.cache import has_value
from ...system.progress import Progress, silent
from ...system.units import Work, map_units
from ..solve.factorize import Factorization
from . import joint_probes
from .curve import loss_curve
from .head_differences import rounds_products
from .kind import EvidenceKind, cache_file
from .layer_probes import (
    SHARES,
    LayerProbes,
    Probing,
    Shares,
    max_windows,
    probe_key,
    probed_ranks,
)
from .probe_windows import mean_and_error, select_windows, window_costs

ROUNDED_TIME = 0.5  # of a probe with products in bfloat16, in that of the layers in float32
Points = dict[Slot, list[Probe]]  # by slot, ranks descending


def probe(
    model: LoadedModel, factors: Factorization, progress: Progress | None = None
) -> Factorization:
    """Return the factorization with evidence "probes".

    The policies `probed` and `sensitivity` and predicted perplexities need it.
    """
    return factors.with_measurement("probes", measure(model, factors, progress or silent))


def measure(model: LoadedModel, factors: Factorization, progress: Progress) -> Probes:
    """Return the probes of all slots.

    Slots x 4 short evaluations, each on 8 to 32 windows of 128 tokens. The probes of each layer
    are cached on disk.
    """
    windows = select_windows(factors.calibration)
    base, points = measure_divergences(model, factors, windows.probing, progress)
    curves = {slot: loss_curve(s, points[slot]) for slot, s in factors.spectra.items()}
    return Probes(base, curves, points, windows.is_held_out)


def cached_probes(model: LoadedModel, factors: Factorization, recipe: Recipe) -> Probes | None:
    """Return the cached result of `measure_with_interaction`, or None if a part of it is missing.

    Raises InputError as it does.
    """
    if _missing_layers(factors):
        return None
    probes = measure(model, factors, silent)
    if recipe.trains:
        return probes
    probed = factors.with_measurement("probes", probes)
    interaction = joint_probes.cached_interaction(model, probed, recipe)
    return None if interaction is None else replace(probes, interaction=interaction)


def tokens_run(factors: Factorization, recipe: Recipe) -> float:
    """Return `EvidenceKind.tokens` of the probes.

    A few complete plans follow the probes of single slots.
    """
    probing = probing_tokens(factors)
    if not probing or recipe.trains:
        return probing
    return probing + joint_probes.tokens_run(factors, recipe)


def probing_tokens(factors: Factorization, shares: Shares = SHARES) -> float:
    """Return how many tokens must run through the complete network to probe all slots.

    A probe runs the layers from the probed slot on; one with products in bfloat16 counts as half of
    it. 0 if all probes are cached.
    """
    missing = _missing_layers(factors, shares)
    layers = len(factors.layers)
    passes = (
        len(probed_ranks(spectrum.cost, shares.all)) * (layers - layer) / layers
        for (layer, _), spectrum in factors.spectra.items()
        if layer in missing
    )
    windows = select_windows(factors.calibration).probing
    tokens = windows[: max_windows(factors, windows, shares)].numel()
    return tokens * sum(passes) * (ROUNDED_TIME if rounds_products(factors) else 1.0)


def _missing_layers(factors: Factorization, shares: Shares = SHARES) -> set[int]:
    """Return the layers without cached probes."""
    parts = probe_key(factors, select_windows(factors.calibration).probing, shares)
    files: dict[int, Path] = {
        layer: cache_file("probes", factors, *parts, layer) for layer in range(len(factors.layers))
    }
    return {layer for layer, file in files.items() if not has_value(file)}


def measure_divergences(
    model: LoadedModel,
    factors: Factorization,
    tokens: Tensor,
    progress: Progress,
    shares: Shares = SHARES,
) -> tuple[float, Points]:
    """Return the loss of the dense network on tokens [windows, length] and the probes of all slots.

    The loss is the mean in nats/token. A probe is the divergence with a slot truncated to a
    probed rank.
    """
    work = Work("probe", Probing(model, factors, tokens, shares))
    layers = list(map_units(work, range(len(factors.layers)), progress))
    return layers[0].loss, points_of(layers)


def points_of(layers: Sequence[LayerProbes]) -> Points:
    """Return the probes of all slots, estimated for all windows."""
    costs = window_costs(
        [layer.values[name][rank] for layer in layers for name, rank in layer.references]
    )
    return {
        (number, name): [
            Probe(rank, *mean_and_error(values[rank], costs))
            for rank in sorted(values, reverse=True)
        ]
        for number, layer in enumerate(layers)
        for name, values in layer.values.items()
    }


def measure_with_interaction(
    model: LoadedModel, factors: Factorization, recipe: Recipe, progress: Progress
) -> Probes:
    """Return the probes, and the joint losses of slots under the recipe's passes.

    Without joint losses if the recipe trains the layers: each joint plan would take as long to make
    as the compression itself.
    """
    probes = measure(model, factors, progress)
    if recipe.trains:
        return probes
    probed = factors.with_measurement("probes", probes)
    interaction = joint_probes.measure_interaction(model, probed, recipe, progress)
    return replace(probes, interaction=interaction)


KIND = EvidenceKind(
    "probes",
    "Predicted increase in loss of every slot at every rank; slots x 4 short evaluations, cached "
    "on disk.",
    measure_with_interaction,
    tokens=tokens_run,
    measure_for_ranks=lambda model, factors, _recipe, progress: measure(model, factors, progress),
)
