"""Number of calibration tokens that a recipe needs."""

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

from ...layers.statistics import COMMON_TAPS, SECOND, TAPS
from ...methods import find_method
from ...models.architectures import decoder_layers
from ...models.layers import layer_shapes
from ...models.stream import further_taps
from ...recipes.recipe import Recipe
from ..calibration.working_memory import tap_widths
from .compress_layers import requests_refit
from .factorize import method_options

_widths: WeakKeyDictionary[PreTrainedModel, Mapping[str, int]] = WeakKeyDictionary()


def tokens_needed(network: PreTrainedModel, recipe: Recipe) -> int:
    """Return the fewest calibration tokens that determine all matrices that a recipe solves.

    A least-squares problem over k inputs needs at least k tokens: with fewer tokens, its second
    moment is singular, and the solution is arbitrary in the directions that no token has. k is the
    largest number of inputs at which the method solves for a second moment or, with a refit, of the
    matrices that it compresses. 0 if the recipe solves no such problem.

    Routed experts see a part of the tokens and are not counted: `Calibration.rare_experts` counts
    those with too few. Raises InputError for an unknown method or option.
    """
    row = find_method(recipe.method)
    options = row.choose(method_options(recipe))
    taps = {tap for tap, statistic in row.reads(options) if statistic == SECOND}
    taps -= row.diagonal_blocks
    if requests_refit(recipe):
        taps |= {TAPS[matrix] for matrix in row.covers if matrix in TAPS}
    widths = _widths_of(network)
    if row.solves_all_matrices and "attn_in" in taps:
        taps |= widths.keys() - COMMON_TAPS
    return max((widths.get(tap, 0) for tap in taps), default=0)


def _widths_of(network: PreTrainedModel) -> Mapping[str, int]:
    """Return the largest width of each tap over the layers of a network."""
    if network not in _widths:
        largest: dict[str, int] = {}
        for index in range(len(decoder_layers(network))):
            layer = layer_shapes(network, index)
            widths = tap_widths(layer, COMMON_TAPS)
            # without the taps of single experts
            for tap in widths.keys() & (COMMON_TAPS | further_taps(layer)):
                largest[tap] = max(largest.get(tap, 0), widths[tap])
        _widths[network] = largest
    return _widths[network]
