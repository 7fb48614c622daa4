"""Quantization of the projections of a compressed or dense model, with 8 to 2 bits per weight.

Without data to the nearest points of grids (see grids.py) or by HQQ (see hqq.py), or by GPTQ (see
obs.py) on calibration text.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor

from ...layers.forms import Matrix
from ...layers.forms import quantize as quantize_matrix
from ...layers.grids import least_squares_grids
from ...layers.hqq import half_quadratic
from ...layers.obs import gptq
from ...models.load import LoadedModel
from ...models.structure import compressed_structures
from ...recipes.history import Quantized
from ...recipes.recipe import Recipe
from ...system.progress import Progress, silent
from ..calibration.calibrate import make_calibration_windows
from ..step_rules import check_may_follow
from .derived_models import compare_size, derive_model, rewrite_network
from .step_settings import Quantizing

# Low and step of the grids, of quantizers without data.
GRIDS: dict[str, Callable[[Tensor, int], tuple[Tensor, Tensor]]] = {
    "nearest": least_squares_grids,
    "hqq": half_quadratic,
}


def quantize(
    model: LoadedModel,
    bits: int = 8,
    group: int = 64,
    progress: Progress | None = None,
    *,
    quantizer: str = "nearest",
    recipe: Recipe | None = None,
) -> LoadedModel:
    """Return the model with quantized decoder projections; the model itself is unchanged.

    Each matrix, or factor of a matrix, is quantized row by row in groups of `group` numbers.
    quantizer: "nearest" or "hqq", without data, or "gptq" on the windows of a recipe, by default
    the model's recipe. The second of two factors is solved again on the outputs of the rounded
    first factor.

    Biases, norms, embeddings, head, experts and factors that are quantized already are unchanged. A
    matrix is dequantized for each product, so only the size of the weights falls, in memory and on
    disk. The history gains `Quantized`, and the account has the new size in bytes.

    Raises InputError for bits other than 8, 4, 3 and 2, for groups below 8, for an unknown
    quantizer, and for a model that was quantized before.
    """
    chosen = Quantizing(bits, group, quantizer)
    check_may_follow(Quantized, model.history, model.name, compressed_structures(model.network))
    tokens, protocol, identity = None, {}, asdict(chosen)
    if chosen.reads_text:
        windows = make_calibration_windows(model, recipe or model.recipe or Recipe())
        tokens, protocol = windows.tokens, windows.protocol
        identity |= {"windows": windows.key}

    def rewrite(matrix: Matrix, moment: Tensor | None) -> Matrix:
        if moment is not None:
            return gptq(matrix, moment, bits, group)
        return quantize_matrix(matrix, bits, group, GRIDS[quantizer])

    network = rewrite_network(model.network, rewrite, tokens, "quantise", progress or silent)
    step = Quantized(quantizer, bits, group, calibration=protocol)
    made = derive_model(
        model, f"{model.name} {quantizer} {bits} bit", network, [_with_first_names(identity)]
    )
    before = model.account or compare_size(model, model)
    account = replace(before, model=replace(before.model, bytes=made.size.stored), bits=bits)
    return replace(made, history=(*model.history, step), account=account)


def _with_first_names(identity: dict[str, Any]) -> dict[str, Any]:
    """Return the identity with the names from when HQQ was the only quantizer."""
    return {"method": identity.pop("quantizer")} | identity
