"""2:4 sparsity: of every four weights of a row, two are kept, with a mask (see `forms.TwoOfFour`).

Graphics cards with sparse matrix units multiply such matrices faster; here, and on any CPU, they
are dense during the product, so that what falls is the size alone.
"""

from dataclasses import replace

from torch import Tensor
from transformers import PreTrainedModel

from ..calibration.calibrate import make_calibration_windows
from ..calibration.gradients import gradient_norms
from ..errors import InputError
from ..forms import Matrix
from ..history import Sparsified
from ..layer import Stored
from ..may_follow import check_may_follow
from ..models.layers import clone, read_layer, write_layer
from ..models.load import LoadedModel
from ..obs import pruner_zero, sparsegpt, wanda
from ..progress import Progress, silent
from ..recipe import Recipe
from .derived import compared, derived
from .rewriting import rewritten_network
from .sparsifying import Sparsifying

BY_INPUTS = {"sparsegpt": sparsegpt, "wanda": wanda}


def sparsify(
    model: LoadedModel,
    recipe: Recipe,
    criterion: str = "sparsegpt",
    progress: Progress | None = None,
) -> LoadedModel:
    """The model with two of every four weights of its decoder projections, or of their factors,
    kept; the model given is untouched.

    recipe: its windows give the inputs, each layer's from the sparse ones before it, or for
    "pruner_zero" the gradients of the dense model. criterion: "sparsegpt", "wanda" or
    "pruner_zero". Matrices whose width is no multiple of four, and stored forms, stay as
    they are; so do embeddings, head and experts. Its history gains `Sparsified`; its account counts
    the weights that are kept as numbers, and these and the masks in bytes.

    Raises InputError for an unknown criterion, where no matrix can be made sparse, for a quantised
    or sparse model, and with "pruner_zero" for an offloaded or compressed one.
    """
    chosen = Sparsifying(criterion)
    check_may_follow(Sparsified, model.history, model.name)
    windows, report = make_calibration_windows(model, recipe), progress or silent
    if chosen.criterion == "pruner_zero":
        network, made_sparse = by_gradients(model, windows.tokens, report)
    else:
        network, made_sparse = by_inputs(model.network, windows.tokens, criterion, report)
    if not made_sparse:
        raise InputError(
            f"No matrix of '{model.name}' has rows of a multiple of four numbers. Compress with "
            "multiple=4, or start from the dense model."
        )
    name = f"{model.name} 2:4 {criterion}"
    made = derived(model, name, network, ["2:4", criterion, windows.key])
    account = compared(model, made, recipe.seq_len)
    if model.account is not None:
        account = replace(account, dense=model.account.dense)
    step = Sparsified(criterion, calibration=windows.protocol)
    return replace(made, history=(*model.history, step), account=account)


def by_inputs(
    dense: PreTrainedModel, tokens: Tensor, criterion: str, progress: Progress
) -> tuple[PreTrainedModel, int]:
    """The network made sparse layer by layer, each on what the sparse ones before it give, and how
    many matrices are sparse. tokens [n, t].
    """
    made_sparse = 0

    def rewrite(matrix: Matrix, moment: Tensor | None) -> Matrix:
        nonlocal made_sparse
        if moment is None or not isinstance(matrix, Tensor) or matrix.shape[1] % 4:
            return matrix
        made_sparse += 1
        return BY_INPUTS[criterion](matrix, moment)

    network = rewritten_network(dense, rewrite, tokens, "sparsify", progress)
    return network, made_sparse


def by_gradients(
    model: LoadedModel, tokens: Tensor, progress: Progress
) -> tuple[PreTrainedModel, int]:
    """The network made sparse by Pruner-Zero, and how many matrices are. tokens [n, t]."""
    network, made_sparse = clone(model.network), 0
    for index, norms in enumerate(gradient_norms(model, tokens, progress)):
        layer = read_layer(network, index)
        sparse = {
            name: Stored(pruner_zero(p.weight, norms[name]), p.bias)
            for name, p in layer.matrices().items()
            if p.weight.shape[1] % 4 == 0
        }
        made_sparse += len(sparse)
        write_layer(network, layer.with_matrices(**sparse))
    return network, made_sparse
