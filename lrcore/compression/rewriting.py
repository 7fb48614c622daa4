"""Every matrix of the decoder layers written anew, layer by layer, with the second moment of its
input where that is needed: what quantisation and 2:4 sparsity share.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..forms import Matrix, dense, tensors_of
from ..layer import Layer, Linear, LowRank, Projection, Stored
from ..models.architectures import decoder_layers
from ..models.layers import clone, read_exact, write_layer
from ..models.stream import LayerStream
from ..progress import Progress
from ..statistics import TAPS, Moments

# A matrix [out, in] in another form, from the second moment [in, in] of its input; None where no
# text is read.
Rewrite = Callable[[Matrix, Tensor | None], Matrix]


def rewritten_network(
    dense: PreTrainedModel,
    rewrite: Rewrite,
    tokens: Tensor | None,
    stage: str,
    progress: Progress,
) -> PreTrainedModel:
    """A second network whose matrices are rewritten; the one given is untouched.

    tokens [n, t]: the windows on which moments are collected, each layer on what the rewritten ones
    before it give; None where none are needed.
    """
    network, total = clone(dense), len(decoder_layers(dense))
    stream = None if tokens is None else LayerStream(network, tokens)
    for index in range(total):
        progress(stage, index, total)
        layer, moments = read_exact(network, index), None
        if stream is not None:
            needs = {(TAPS[name], "second") for name in layer.matrices()}
            moments = stream.run(index, needs, advance=False)
        write_layer(network, rewritten(layer, rewrite, moments))
        if stream is not None:
            stream.run(index)
    progress(stage, total, total)
    return network


def rewritten(layer: Layer, rewrite: Rewrite, moments: Moments | None) -> Layer:
    """A layer whose matrices are rewritten; a factor that projections share stays one.

    The second factor of two reads what the first, as it is now, gives.
    """
    made: dict[Any, Matrix] = {}

    def once(matrix: Matrix, moment: Tensor | None) -> Matrix:
        first = matrix if isinstance(matrix, Tensor) else next(iter(tensors_of(matrix).values()))
        key = first.data_ptr(), first.shape
        if key not in made:
            made[key] = rewrite(matrix, moment)
        return made[key]

    def one(name: str, p: Projection) -> Projection:
        moment = None if moments is None else moments.second(TAPS[name])
        if isinstance(p, LowRank):
            down = once(p.down, moment)
            if moment is not None:
                inner = dense(down).to(moment.dtype)
                moment = inner @ moment @ inner.mT
            return replace(p, down=down, up=once(p.up, moment))
        form = once(p.form if isinstance(p, Stored) else p.weight, moment)
        return Linear(form, p.bias) if isinstance(form, Tensor) else Stored(form, p.bias)

    return layer.with_matrices(**{name: one(name, p) for name, p in layer.matrices().items()})
