"""Quantised on top: the projections of a model, compressed or dense, with 8 or 4 bits per
weight, by HQQ (see hqq.py) and without data.
"""

from dataclasses import replace
from typing import Any

from torch import Tensor

from ..errors import InputError
from ..forms import Matrix, tensors_of
from ..forms import quantise as codes_of
from ..history import Quantised
from ..hqq import half_quadratic
from ..layer import Layer, LowRank, Projection, Stored
from ..may_follow import check_may_follow
from ..models.architectures import decoder_layers
from ..models.layers import clone, read_layer, write_layer
from ..models.load import LoadedModel
from ..progress import Progress, silent
from .derived import compared, derived

BITS = (8, 4)


def quantise(
    model: LoadedModel, bits: int = 8, group: int = 64, progress: Progress | None = None
) -> LoadedModel:
    """The model with every matrix of its decoder projections, or of their factors, quantised in
    groups of `group` numbers, row by row.

    The model given is untouched. Biases, norms, embeddings, head and experts stay as they are;
    factors that are quantised already, too. A matrix is dequantised for the length of its product,
    so what falls is the size of the weights, in memory and on disk. Its history gains `Quantised`,
    and its account has the bytes as they are.

    Raises InputError for bits other than 8 and 4, for groups below 8, and for a model quantised
    before.
    """
    if bits not in BITS or group < 8:
        raise InputError(
            f"Weights of {bits} bits in groups of {group} are not offered. Use 8 or 4 bits, and "
            "groups of at least 8, such as 64."
        )
    check_may_follow(Quantised, model.history, model.name)
    network, progress, total = (
        clone(model.network),
        progress or silent,
        len(decoder_layers(model.network)),
    )
    for index in range(total):
        progress("quantise", index, total)
        write_layer(network, quantised(read_layer(network, index), bits, group))
    progress("quantise", total, total)
    step = Quantised("hqq", bits, group)
    identity = {"method": step.method, "bits": bits, "group": group}
    made = derived(model, f"{model.name} hqq {bits} bit", network, [identity])
    before = model.account or compared(model, model)
    account = replace(before, model=replace(before.model, bytes=made.size.stored), bits=bits)
    return replace(made, history=(*model.history, step), account=account)


def quantised(layer: Layer, bits: int, group: int) -> Layer:
    """A layer whose matrices are quantised; a factor that projections share stays one."""
    coded: dict[Any, Matrix] = {}

    def code(matrix: Matrix) -> Matrix:
        first = matrix if isinstance(matrix, Tensor) else next(iter(tensors_of(matrix).values()))
        key = first.data_ptr(), first.shape
        if key not in coded:
            coded[key] = codes_of(matrix, bits, group, half_quadratic)
        return coded[key]

    def one(p: Projection) -> Projection:
        if isinstance(p, LowRank):
            return replace(p, down=code(p.down), up=code(p.up))
        form = code(p.form if isinstance(p, Stored) else p.weight)
        return p if isinstance(form, Tensor) else Stored(form, p.bias)  # one without numbers stays

    return layer.with_matrices(**{name: one(p) for name, p in layer.matrices().items()})
