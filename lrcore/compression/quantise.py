"""Quantised on top: the projections of a model, compressed or dense, with 8 to 2 bits per weight,
by HQQ (see hqq.py) without data or by GPTQ (see obs.py) on calibration text.
"""

from dataclasses import asdict, replace
from typing import Any

from torch import Tensor

from ..calibration.calibrate import make_calibration_windows
from ..forms import Matrix
from ..forms import quantise as codes_of
from ..history import Quantised
from ..hqq import half_quadratic
from ..may_follow import check_may_follow
from ..models.load import LoadedModel
from ..models.structure import forms_of
from ..obs import gptq
from ..progress import Progress, silent
from ..recipe import Recipe
from .derived import compared, derived
from .quantising import Quantising
from .rewriting import rewritten_network


def quantise(
    model: LoadedModel,
    bits: int = 8,
    group: int = 64,
    progress: Progress | None = None,
    *,
    quantiser: str = "hqq",
    recipe: Recipe | None = None,
) -> LoadedModel:
    """The model with every matrix of its decoder projections, or of their factors, quantised in
    groups of `group` numbers, row by row.

    quantiser: "hqq", or "gptq" on the windows of a recipe, by default the model's own; GPTQ rounds
    matrices with identity blocks as HQQ does.
    The model given is untouched. Biases, norms, embeddings, head and experts stay as they are;
    factors that are quantised already, too. A matrix is dequantised for the length of its product,
    so what falls is the size of the weights, in memory and on disk. Its history gains `Quantised`,
    and its account has the bytes as they are.

    Raises InputError for bits other than 8, 4, 3 and 2, for groups below 8, an unknown quantiser,
    and a model quantised before.
    """
    chosen = Quantising(bits, group, quantiser)
    check_may_follow(Quantised, model.history, model.name, forms_of(model.network))
    tokens, protocol, identity = None, {}, asdict(chosen)
    if chosen.reads_text:
        windows = make_calibration_windows(model, recipe or model.recipe or Recipe())
        tokens, protocol = windows.tokens, windows.protocol
        identity |= {"windows": windows.key}

    def rewrite(matrix: Matrix, moment: Tensor | None) -> Matrix:
        if moment is not None and isinstance(matrix, Tensor):
            return gptq(matrix, moment, bits, group)
        return codes_of(matrix, bits, group, half_quadratic)

    network = rewritten_network(model.network, rewrite, tokens, "quantise", progress or silent)
    step = Quantised(quantiser, bits, group, calibration=protocol)
    made = derived(model, f"{model.name} {quantiser} {bits} bit", network, [_named(identity)])
    before = model.account or compared(model, model)
    account = replace(before, model=replace(before.model, bytes=made.size.stored), bits=bits)
    return replace(made, history=(*model.history, step), account=account)


def _named(identity: dict[str, Any]) -> dict[str, Any]:
    """The identity under the names that it had when HQQ was the only quantiser."""
    return {"method": identity.pop("quantiser")} | identity
