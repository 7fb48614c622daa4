"""Plain SVD: each matrix on its own, best in the Frobenius norm of the weight (Eckart-Young), blind to the data."""

from ..layer import Layer
from ..linalg import balanced, whitened_svd
from ..statistics import Moments
from .factors import FactoredMatrix, Factors, matrix_cost

NEEDS = frozenset()


def factor(layer: Layer, moments: Moments) -> Factors:
    """`U S V^T = svd(W)` of every matrix; `|W - W^_r|_F^2 = sum_{j>=r} S_j^2`."""
    return {name: factored(layer, name, *whitened_svd(projection.weight, None)) for name, projection in layer.matrices().items()}


def factored(layer: Layer, name: str, up, values, down) -> FactoredMatrix:
    """Pack the factors of one matrix, their scale shared evenly between the two sides."""
    up, down = balanced(up, down)
    return FactoredMatrix(values, matrix_cost(layer, name), None, name, up, down)
