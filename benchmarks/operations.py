"""Counter of the floating-point operations of products and decompositions.

Decompositions count the leading terms published for LAPACK (LAPACK Working Note 41; Golub and Van
Loan, Matrix Computations, for values and vectors). Operations limited by memory, such as sums and
copies, are not counted.
"""

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import lrcore

from .random_models import write_model, write_text
from .timing import empty_cache

REDUCTION = 8  # operations are counted at 1 / REDUCTION of the width and grow with its cube
WIDTHS = ("hidden_size", "intermediate_size")
TEXTS, SAMPLES, LENGTH = 200, 8, 256
aten = torch.ops.aten
Arguments = Mapping[str, Any]  # of an operation, by the names in its schema


def _cholesky(arguments: Arguments) -> float:
    return _cubed(arguments["self"]) / 3


def _triangular(arguments: Arguments) -> float:
    return arguments["self"].shape[-1] * arguments["B"].numel()


def _eigh(arguments: Arguments) -> float:
    """Tridiagonal reduction (4/3), solution (4/3) and back-transformation of the vectors (2)."""
    return _cubed(arguments["A"]) * 14 / 3


def _qr(arguments: Arguments) -> float:
    rows, columns = sorted(arguments["A"].shape[-2:], reverse=True)
    triangle = 2 * rows * columns**2 - 2 / 3 * columns**3
    return _batch(arguments["A"]) * triangle * (1 if arguments.get("mode") == "r" else 2)


def _svd(arguments: Arguments) -> float:
    rows, columns = sorted(arguments["A"].shape[-2:], reverse=True)
    return _batch(arguments["A"]) * (6 * rows * columns**2 + 20 * columns**3)


def _lu(arguments: Arguments) -> float:
    return _cubed(arguments["A"]) * 2 / 3


def _solve(arguments: Arguments) -> float:
    return _lu(arguments) + 2 * arguments["A"].shape[-1] * arguments["B"].numel()


def _cubed(m: torch.Tensor) -> float:
    return _batch(m) * m.shape[-1] ** 3


def _batch(m: torch.Tensor) -> int:
    return math.prod(m.shape[:-2])


DECOMPOSITIONS: Mapping[Any, Callable[[Arguments], float]] = {
    aten.linalg_cholesky_ex: _cholesky,
    aten.linalg_solve_triangular: _triangular,
    aten._linalg_eigh: _eigh,
    aten.linalg_qr: _qr,
    aten._linalg_svd: _svd,
    aten.linalg_lu_factor_ex: _lu,
    aten._linalg_solve_ex: _solve,
    aten.mv: lambda arguments: 2 * arguments["self"].numel(),
}


class Operations(TorchDispatchMode):
    """Context that counts the operations of this thread by dtype. In it torch also computes the
    vectors of all eigenvalues and singular values, and they are counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_dtype: Counter[torch.dtype] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        kind = func.overloadpacket
        if kind in DECOMPOSITIONS:
            names = (argument.name for argument in func._schema.arguments)
            arguments = dict(zip(names, args, strict=False)) | (kwargs or {})
            self.by_dtype[args[0].dtype] += DECOMPOSITIONS[kind](arguments)
        elif kind in flop_registry:
            self.by_dtype[args[0].dtype] += flop_registry[kind](*args, out_val=result)
        return result


def count_layer(
    shape: Mapping[str, int], method: str, options: Mapping[str, Any]
) -> dict[torch.dtype, float]:
    """Return the operations of factorizing a decoder layer by dtype. shape: of `LlamaConfig`."""
    smaller = {**shape, "num_hidden_layers": 1} | {
        name: shape[name] // REDUCTION for name in WIDTHS
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # else matrices are decomposed in separate threads
    try:
        with empty_cache(), tempfile.TemporaryDirectory() as folder:
            model_folder, text = Path(folder) / "model", Path(folder) / "text.jsonl"
            write_model(model_folder, smaller)
            write_text(text, TEXTS)
            recipe = lrcore.Recipe(
                str(model_folder), data=str(text), samples=SAMPLES, seq_len=LENGTH
            )
            model = lrcore.load(recipe.model)
            calibration = lrcore.calibrate(model, recipe)
            with Operations() as counted:
                lrcore.factorize(model, calibration, method, options=options)
    finally:
        torch.set_num_threads(threads)
    return {dtype: count * REDUCTION**3 for dtype, count in counted.by_dtype.items()}
