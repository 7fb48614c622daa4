"""Evidence "probes": the predicted increase in loss of every slot at every rank. Ours; in no paper.

The loss curves of the slots have different units (scores, outputs of attention, outputs of the
MLP). Probes give them one, nats/token: truncate one slot alone to a few ranks and measure how far
the model's predictions then are from the dense model's, on windows that the moments have not seen
(divergence.py). Each curve is scaled to its probes (curve.py). Layers before the slot are not run
again.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from ...cache import has_value
from ...evidence import Probe, Probes
from ...models.load import LoadedModel
from ...progress import Progress, silent
from ...recipe import Recipe
from ...spectra import Slot
from ...units import Work, each
from ..factorise import Factorisation
from . import joint
from .cache import cache_file
from .curve import loss_curve
from .few_windows import mean_and_error, window_costs
from .kind import EvidenceKind
from .probing import LayerProbes, Probing, key, most_windows, probed_ranks
from .windows import windows_of

Points = dict[Slot, list[Probe]]  # by slot, ranks descending


def probe(
    model: LoadedModel, factors: Factorisation, progress: Progress | None = None
) -> Factorisation:
    """The factorisation with evidence "probes", for the policies `probed` and `sensitivity` and for
    predicted perplexities.
    """
    return factors.with_measurement("probes", measure(model, factors, progress or silent))


def measure(model: LoadedModel, factors: Factorisation, progress: Progress) -> Probes:
    """Slots x 4 short evaluations, each on 8 to 32 windows of 128 tokens; those of every layer are
    kept on disk beside the calibration.
    """
    windows = windows_of(factors.calibration)
    base, points = measure_divergences(model, factors, windows.probing, progress)
    curves = {slot: loss_curve(s, points[slot]) for slot, s in factors.spectra.items()}
    return Probes(base, curves, points, windows.held_out)


def kept(model: LoadedModel, factors: Factorisation, recipe: Recipe) -> Probes | None:
    """What `measure_together` left on disk; None where a part of it is missing. Raises InputError
    as it does.
    """
    if _missing(factors):
        return None
    probes = measure(model, factors, silent)
    together = joint.kept_interaction(model, factors.with_measurement("probes", probes), recipe)
    return None if together is None else replace(probes, interaction=together)


def tokens_run(factors: Factorisation, recipe: Recipe) -> float:
    """See `EvidenceKind.tokens`: a probe runs the layers from its own on; a few whole plans
    follow.
    """
    missing = _missing(factors)
    if not missing:
        return 0.0
    layers = len(factors.layers)
    passes = (
        len(probed_ranks(spectrum.cost)) * (layers - layer) / layers
        for (layer, _), spectrum in factors.spectra.items()
        if layer in missing
    )
    windows = windows_of(factors.calibration).probing
    tokens = windows[: most_windows(factors, windows)].numel()
    return tokens * sum(passes) + joint.tokens_run(factors, recipe)


def _missing(factors: Factorisation) -> set[int]:
    """The layers whose probes are not on disk."""
    parts = key(windows_of(factors.calibration).probing)
    files: dict[int, Path] = {
        layer: cache_file("probes", factors, *parts, layer) for layer in range(len(factors.layers))
    }
    return {layer for layer, file in files.items() if not has_value(file)}


def measure_divergences(
    model: LoadedModel, factors: Factorisation, tokens: Tensor, progress: Progress
) -> tuple[float, Points]:
    """Mean loss (nats/token) of the dense network on tokens [windows, length], and the divergence
    from it for each slot alone at each probed rank.
    """
    work = Work("probe", Probing(model, factors, tokens))
    layers = list(each(work, range(len(factors.layers)), progress))
    return layers[0].loss, points_of(layers)


def points_of(layers: Sequence[LayerProbes]) -> Points:
    """The probes of all slots, estimated for all windows."""
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


def measure_together(
    model: LoadedModel, factors: Factorisation, recipe: Recipe, progress: Progress
) -> Probes:
    """Probes, and what slots lose together under the recipe's passes."""
    probes = measure(model, factors, progress)
    probed = factors.with_measurement("probes", probes)
    return replace(probes, interaction=joint.measure_interaction(model, probed, recipe, progress))


KIND = EvidenceKind(
    "probes",
    "Predicted increase in loss of every slot at every rank; slots x 4 short evaluations, kept on "
    "disk.",
    measure_together,
    tokens=tokens_run,
)
