"""Sparsity: two of each four weights of a row (2:4), or a share of all weights, remain nonzero.

See `forms.TwoOfFour` and `forms.Masked`. GPUs with sparse matrix units multiply 2:4 matrices
faster. Here products take about as long as dense ones (see `layers/sparse_product.py`), so only
the size falls.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ...layers.forms import Form, Masked, Matrix, masked
from ...layers.layer import Stored
from ...layers.obs import pruner_zero, sparsegpt, wanda
from ...methods.latentllm.sparse import ROUNDS, shrink
from ...models.layers import clone, read_exact, write_layer
from ...models.load import LoadedModel
from ...models.structure import compressed_structures
from ...recipes.history import Sparsified
from ...recipes.recipe import Recipe
from ...system.errors import InputError
from ...system.progress import Progress, silent
from ..calibration.calibrate import make_calibration_windows
from ..calibration.gradients import gradient_norms
from ..step_rules import check_may_follow
from .derived_models import compare_size, derive_model, rewrite_network
from .step_settings import Sparsifying


def sparsify(
    model: LoadedModel,
    recipe: Recipe,
    criterion: str | Sparsifying = "sparsegpt",
    progress: Progress | None = None,
    **settings: Any,
) -> LoadedModel:
    """Return the model with sparse decoder projections, or factors of them; the model is unchanged.

    recipe: the windows give the inputs, each layer's from the sparse layers before it, or for
    "pruner_zero" the gradients of the dense model. criterion: "sparsegpt", "wanda", "pruner_zero"
    or "shrinkage", or a `Sparsifying`; settings: the other fields by name, pattern ("2:4" or
    "unstructured") and density. With 2:4, matrices of a width that is not a multiple of four are
    unchanged. So are stored forms, embeddings, head and experts. The history gains `Sparsified`;
    the account counts nonzero weights as parameters, and these and the masks in bytes.

    Raises InputError for an unknown criterion, if no matrix can be made sparse, for a quantized or
    sparse model, and with "pruner_zero" for an offloaded or compressed model.
    """
    chosen = criterion if isinstance(criterion, Sparsifying) else Sparsifying(criterion, **settings)
    check_may_follow(Sparsified, model.history, model.name, compressed_structures(model.network))
    windows, report = make_calibration_windows(model, recipe), progress or silent
    if chosen.criterion == "pruner_zero":
        network, sparse_count = by_gradients(model, windows.tokens, chosen, report)
    else:
        network, sparse_count = by_inputs(model.network, windows.tokens, chosen, report)
    if not sparse_count:
        raise InputError(
            f"No matrix of '{model.name}' has rows of a multiple of four numbers. Compress with "
            "rank_multiple=4, or start from the dense model."
        )
    name = f"{model.name} {chosen.title} {chosen.criterion}"
    made = derive_model(model, name, network, [chosen.title, chosen.criterion, windows.key])
    account = compare_size(model, made, recipe.seq_len)
    if model.account is not None:
        account = replace(account, dense=model.account.dense)
    step = Sparsified(
        chosen.criterion,
        calibration=windows.protocol,
        pattern=chosen.pattern,
        kept=chosen.density,
    )
    return replace(made, history=(*model.history, step), account=account)


def by_inputs(
    dense: PreTrainedModel, tokens: Tensor, chosen: Sparsifying, progress: Progress
) -> tuple[PreTrainedModel, int]:
    """Return the network made sparse layer by layer, and the number of sparse matrices.

    Each layer is solved on the outputs of the sparse layers before it. tokens [n, t].
    """
    sparse_count = 0

    def rewrite(matrix: Matrix, moment: Tensor | None) -> Matrix:
        nonlocal sparse_count
        if moment is None or not isinstance(matrix, Tensor) or not _fits(matrix, chosen):
            return matrix
        sparse_count += 1
        return BY_INPUTS[chosen.criterion](matrix, moment, chosen.share)

    network = rewrite_network(dense, rewrite, tokens, "sparsify", progress)
    return network, sparse_count


def _fits(matrix: Tensor, chosen: Sparsifying) -> bool:
    return chosen.share is not None or matrix.shape[1] % 4 == 0


def by_gradients(
    model: LoadedModel, tokens: Tensor, chosen: Sparsifying, progress: Progress
) -> tuple[PreTrainedModel, int]:
    """Return the network made sparse by Pruner-Zero, and the number of sparse matrices.

    tokens [n, t].
    """
    network, sparse_count = clone(model.network), 0
    collected = gradient_norms(model, tokens, progress, f"criterion {chosen.criterion}")
    for index, norms in enumerate(collected):
        layer = read_exact(network, index)
        sparse = {
            name: Stored(pruner_zero(p.weight, norms[name], chosen.share), p.bias)
            for name, p in layer.matrices().items()
            if _fits(p.weight, chosen)
        }
        sparse_count += len(sparse)
        write_layer(network, layer.with_matrices(**sparse))
    return network, sparse_count


def shrunk(weight: Tensor, moment: Tensor, share: float | None) -> Masked:
    """Return the sparse matrix D nearest to a matrix [out, in] on the inputs.

    Minimizes `|(D - W) C^{1/2}|^2` by gradient descent that retains the largest entries in every
    step (LatentLLM, eq. 231 without B A, 237), starting from the largest `|w_ij| C_jj^{1/2}`.

    moment C [in, in] of the input.
    """
    assert share is not None  # the settings require pattern "unstructured"
    target, entries = weight.double(), max(1, round(share * weight.numel()))
    sparse = target
    for _ in range(ROUNDS):
        sparse = shrink(sparse, target, moment.double(), entries)
    return masked(sparse.to(weight.dtype), sparse != 0)


BY_INPUTS: dict[str, Callable[[Tensor, Tensor, float | None], Form]] = {
    "sparsegpt": sparsegpt,
    "wanda": wanda,
    "shrinkage": shrunk,
}
