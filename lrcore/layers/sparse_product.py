"""The product of a sparse matrix with few tokens, from a matrix that stays in memory.

A sparse form makes its dense matrix for each product. For the few tokens of a decoding step this
takes many times as long as the product.
"""

import warnings

import torch
from torch import Tensor

TOKENS = 32  # of a step; for several times as many the dense matrix takes no longer


def has_sparse_product() -> bool:
    """Return whether torch multiplies rows of nonzero numbers: only with MKL, in float32."""
    return bool(torch.backends.mkl.is_available())


def can_keep(values: Tensor, x: Tensor) -> bool:
    """Return whether a `KeptMatrix` multiplies a sparse matrix with tokens x [..., in].

    values: the nonzero numbers. Not while gradients are computed or the network is traced, and only
    for float32 on a CPU.
    """
    return (
        not torch.compiler.is_compiling()
        and x.numel() <= TOKENS * x.shape[-1]
        and x.dtype == values.dtype == torch.float32
        and x.device.type == "cpu"
        and has_sparse_product()
        and not torch.is_autocast_enabled("cpu")
        and not (torch.is_grad_enabled() and (x.requires_grad or values.requires_grad))
        and not torch._C._get_tracing_state()
    )


class KeptMatrix:
    """A sparse matrix [out, in] that stays in memory between decoding steps, and what it was made
    from.

    It has the smaller of two layouts: the nonzero numbers by row with their columns, 8 bytes each,
    or the dense matrix, 4 bytes per number.
    """

    def __init__(self, values: Tensor, matrix: Tensor) -> None:
        """values: the stored numbers of the matrix [out, in], float32."""
        self._source, self._matrix = _state(values), matrix
        if 2 * values.numel() >= matrix.numel():
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls its sparse tensors a beta version
            rows = matrix.to_sparse_csr()
            self._matrix = torch.sparse_csr_tensor(
                rows.crow_indices().int(), rows.col_indices().int(), rows.values(), matrix.shape
            )

    def is_of(self, values: Tensor) -> bool:
        """Return whether numbers [k] are those that it was made from, unchanged."""
        return _state(values) == self._source

    def product(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        tokens = x.reshape(-1, x.shape[-1])
        if self._matrix.layout == torch.strided:
            product = torch.nn.functional.linear(tokens, self._matrix)
        elif len(tokens) == 1:
            product = self._matrix @ tokens[0]
        else:
            product = (self._matrix @ tokens.mT).mT
        return product.reshape(*x.shape[:-1], self._matrix.shape[0])


def _state(values: Tensor) -> tuple[int, int, int]:
    """Return address, size and version of numbers; a change in place increases the version."""
    version = 0 if values.is_inference() else values._version
    return values.data_ptr(), values.numel(), version
