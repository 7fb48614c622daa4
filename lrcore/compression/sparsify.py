"""Sparsity: of every four weights of a row two are kept (2:4, see `forms.TwoOfFour`), or a share of
all wherever they are (`forms.Masked`), with a mask.

Graphics cards with sparse matrix units multiply 2:4 matrices faster; here, and on any CPU, they are
dense during the product, so that what falls is the size alone.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..calibration.calibrate import make_calibration_windows
from ..calibration.gradients import gradient_norms
from ..errors import InputError
from ..forms import Form, Masked, Matrix, masked
from ..history import Sparsified
from ..layer import Stored
from ..may_follow import check_may_follow
from ..methods.latentllm.sparse import ROUNDS, shrink
from ..models.layers import clone, read_exact, write_layer
from ..models.load import LoadedModel
from ..models.structure import forms_of
from ..obs import pruner_zero, sparsegpt, wanda
from ..progress import Progress, silent
from ..recipe import Recipe
from .derived import compared, derived
from .rewriting import rewritten_network
from .sparsifying import Sparsifying


def sparsify(
    model: LoadedModel,
    recipe: Recipe,
    criterion: str | Sparsifying = "sparsegpt",
    progress: Progress | None = None,
    **settings: Any,
) -> LoadedModel:
    """The model with two of every four weights of its decoder projections, or of their factors,
    kept, or a share of them wherever they are; the model given is untouched.

    recipe: its windows give the inputs, each layer's from the sparse ones before it, or for
    "pruner_zero" the gradients of the dense model. criterion: "sparsegpt", "wanda", "pruner_zero"
    or "shrinkage", or whole `Sparsifying`; settings: its other fields by name, pattern ("2:4" or
    "unstructured") and kept. Of 2:4, matrices whose width is no multiple of four stay as they are,
    and so do stored forms, embeddings, head and experts. Its history gains `Sparsified`; its
    account counts the weights that are kept as numbers, and these and the masks in bytes.

    Raises InputError for an unknown criterion, where no matrix can be made sparse, for a quantised
    or sparse model, and with "pruner_zero" for an offloaded or compressed one.
    """
    chosen = criterion if isinstance(criterion, Sparsifying) else Sparsifying(criterion, **settings)
    check_may_follow(Sparsified, model.history, model.name, forms_of(model.network))
    windows, report = make_calibration_windows(model, recipe), progress or silent
    if chosen.criterion == "pruner_zero":
        network, made_sparse = by_gradients(model, windows.tokens, chosen, report)
    else:
        network, made_sparse = by_inputs(model.network, windows.tokens, chosen, report)
    if not made_sparse:
        raise InputError(
            f"No matrix of '{model.name}' has rows of a multiple of four numbers. Compress with "
            "multiple=4, or start from the dense model."
        )
    name = f"{model.name} {chosen.title} {chosen.criterion}"
    made = derived(model, name, network, [chosen.title, chosen.criterion, windows.key])
    account = compared(model, made, recipe.seq_len)
    if model.account is not None:
        account = replace(account, dense=model.account.dense)
    step = Sparsified(
        chosen.criterion,
        calibration=windows.protocol,
        pattern=chosen.pattern,
        kept=chosen.kept,
    )
    return replace(made, history=(*model.history, step), account=account)


def by_inputs(
    dense: PreTrainedModel, tokens: Tensor, chosen: Sparsifying, progress: Progress
) -> tuple[PreTrainedModel, int]:
    """The network made sparse layer by layer, each on what the sparse ones before it give, and how
    many matrices are sparse. tokens [n, t].
    """
    made_sparse = 0

    def rewrite(matrix: Matrix, moment: Tensor | None) -> Matrix:
        nonlocal made_sparse
        if moment is None or not isinstance(matrix, Tensor) or not _fits(matrix, chosen):
            return matrix
        made_sparse += 1
        return BY_INPUTS[chosen.criterion](matrix, moment, chosen.share)

    network = rewritten_network(dense, rewrite, tokens, "sparsify", progress)
    return network, made_sparse


def _fits(matrix: Tensor, chosen: Sparsifying) -> bool:
    return chosen.share is not None or matrix.shape[1] % 4 == 0


def by_gradients(
    model: LoadedModel, tokens: Tensor, chosen: Sparsifying, progress: Progress
) -> tuple[PreTrainedModel, int]:
    """The network made sparse by Pruner-Zero, and how many matrices are. tokens [n, t]."""
    network, made_sparse = clone(model.network), 0
    collected = gradient_norms(model, tokens, progress, f"criterion {chosen.criterion}")
    for index, norms in enumerate(collected):
        layer = read_exact(network, index)
        sparse = {
            name: Stored(pruner_zero(p.weight, norms[name], chosen.share), p.bias)
            for name, p in layer.matrices().items()
            if _fits(p.weight, chosen)
        }
        made_sparse += len(sparse)
        write_layer(network, layer.with_matrices(**sparse))
    return network, made_sparse


def shrunk(weight: Tensor, moment: Tensor, share: float | None) -> Masked:
    """The sparse matrix D nearest to a matrix [out, in] on its inputs, `|(D - W) C^{1/2}|^2`, by
    gradient descent that keeps the largest entries of every step (LatentLLM, eq. 231 without B A,
    237). It begins with the largest `|w_ij| C_jj^{1/2}`.

    moment C [in, in] of the input.
    """
    assert share is not None  # as the settings say
    wanted, entries = weight.double(), max(1, round(share * weight.numel()))
    made = wanted
    for _ in range(ROUNDS):
        made = shrink(made, wanted, moment.double(), entries)
    return masked(made.to(weight.dtype), made != 0)


BY_INPUTS: dict[str, Callable[[Tensor, Tensor, float | None], Form]] = {
    "sparsegpt": sparsegpt,
    "wanda": wanda,
    "shrinkage": shrunk,
}
