"""2:4 sparsity: of every four weights of a row, two are kept, with a mask (see `forms.TwoOfFour`).

Graphics cards with sparse matrix units multiply such matrices faster; here, and on any CPU, they
are dense during the product, so that what falls is the size alone.
"""

from dataclasses import replace

from torch import Tensor

from ..calibration.calibrate import make_calibration_windows
from ..errors import InputError
from ..forms import Matrix
from ..history import Sparsified
from ..may_follow import check_may_follow
from ..models.load import LoadedModel
from ..obs import sparsegpt, wanda
from ..progress import Progress, silent
from ..recipe import Recipe
from .derived import compared, derived
from .rewriting import rewritten_network
from .sparsifying import Sparsifying

CRITERIA = {"sparsegpt": sparsegpt, "wanda": wanda}


def sparsify(
    model: LoadedModel,
    recipe: Recipe,
    criterion: str = "sparsegpt",
    progress: Progress | None = None,
) -> LoadedModel:
    """The model with two of every four weights of its decoder projections, or of their factors,
    kept; the model given is untouched.

    recipe: its windows give the inputs, each layer's from the sparse ones before it. criterion:
    "sparsegpt" or "wanda". Matrices whose width is no multiple of four, and stored forms, stay as
    they are; so do embeddings, head and experts. Its history gains `Sparsified`; its account counts
    the weights that are kept as numbers, and these and the masks in bytes.

    Raises InputError for an unknown criterion, where no matrix can be made sparse, and for a
    quantised or sparse model.
    """
    chosen = Sparsifying(criterion)
    check_may_follow(Sparsified, model.history, model.name)
    windows, made_sparse = make_calibration_windows(model, recipe), 0

    def rewrite(matrix: Matrix, moment: Tensor | None) -> Matrix:
        nonlocal made_sparse
        if moment is None or not isinstance(matrix, Tensor) or matrix.shape[1] % 4:
            return matrix
        made_sparse += 1
        return CRITERIA[chosen.criterion](matrix, moment)

    network = rewritten_network(
        model.network, rewrite, windows.tokens, "sparsify", progress or silent
    )
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
