"""The floating-point operations of products and decompositions, counted while they run.

Those of LAPACK are the leading terms of its own counts (LAPACK Working Note 41; Golub and Van Loan,
Matrix Computations, for values and vectors). What takes memory alone, such as sums and copies,
counts nothing.
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

from .made_up import write_model, write_text
from .page import empty_cache

PART = 8  # of the width: operations are counted on a smaller layer, and grow with its cube
WIDTHS = ("hidden_size", "intermediate_size")
TEXTS, SAMPLES, LENGTH = 200, 8, 256
aten = torch.ops.aten
Named = Mapping[str, Any]  # the arguments of an operation, as its schema calls them


def _cholesky(given: Named) -> float:
    return _cubed(given["self"]) / 3


def _triangular(given: Named) -> float:
    return given["self"].shape[-1] * given["B"].numel()


def _eigh(given: Named) -> float:
    """Reduced to three diagonals (4/3), solved (4/3), and vectors carried back (2)."""
    return _cubed(given["A"]) * 14 / 3


def _qr(given: Named) -> float:
    rows, columns = sorted(given["A"].shape[-2:], reverse=True)
    triangle = 2 * rows * columns**2 - 2 / 3 * columns**3
    return _batch(given["A"]) * triangle * (1 if given.get("mode") == "r" else 2)


def _svd(given: Named) -> float:
    rows, columns = sorted(given["A"].shape[-2:], reverse=True)
    return _batch(given["A"]) * (6 * rows * columns**2 + 20 * columns**3)


def _lu(given: Named) -> float:
    return _cubed(given["A"]) * 2 / 3


def _solve(given: Named) -> float:
    return _lu(given) + 2 * given["A"].shape[-1] * given["B"].numel()


def _cubed(m: torch.Tensor) -> float:
    return _batch(m) * m.shape[-1] ** 3


def _batch(m: torch.Tensor) -> int:
    return math.prod(m.shape[:-2])


DECOMPOSITIONS: Mapping[Any, Callable[[Named], float]] = {
    aten.linalg_cholesky_ex: _cholesky,
    aten.linalg_solve_triangular: _triangular,
    aten._linalg_eigh: _eigh,
    aten.linalg_qr: _qr,
    aten._linalg_svd: _svd,
    aten.linalg_lu_factor_ex: _lu,
    aten._linalg_solve_ex: _solve,
    aten.mv: lambda given: 2 * given["self"].numel(),
}


class Operations(TorchDispatchMode):
    """Counts the operations of this thread inside of it, by dtype. Inside, torch computes vectors
    with all eigenvalues and singular values, and they are counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_dtype: Counter[torch.dtype] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        kind = func.overloadpacket
        if kind in DECOMPOSITIONS:
            names = (one.name for one in func._schema.arguments)
            given = dict(zip(names, args, strict=False)) | (kwargs or {})
            self.by_dtype[args[0].dtype] += DECOMPOSITIONS[kind](given)
        elif kind in flop_registry:
            self.by_dtype[args[0].dtype] += flop_registry[kind](*args, out_val=result)
        return result


def of_a_layer(
    shape: Mapping[str, int], method: str, options: Mapping[str, Any]
) -> dict[torch.dtype, float]:
    """What factorising one decoder layer takes, by dtype. shape: of `LlamaConfig`."""
    smaller = {**shape, "num_hidden_layers": 1} | {name: shape[name] // PART for name in WIDTHS}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # or several matrices are decomposed in threads of their own
    try:
        with empty_cache(), tempfile.TemporaryDirectory() as folder:
            place, text = Path(folder) / "model", Path(folder) / "text.jsonl"
            write_model(place, smaller)
            write_text(text, TEXTS)
            recipe = lrcore.Recipe(str(place), data=str(text), samples=SAMPLES, seq_len=LENGTH)
            model = lrcore.load(recipe.model)
            calibration = lrcore.calibrate(model, recipe)
            with Operations() as counted:
                lrcore.factorise(model, calibration, method, options=options)
    finally:
        torch.set_num_threads(threads)
    return {dtype: count * PART**3 for dtype, count in counted.by_dtype.items()}
