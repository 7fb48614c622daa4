"""Modules of projections, dense or low-rank, with stored forms.

They are made from values, read back as values, described, and rebuilt from the description.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from ..forms import FORMS, Form, Matrix, count, kind_of, memory_of, settings_of, tensors_of
from ..layer import Linear, LowRank, Projection, Stored
from ..sparse_product import KeptMatrix, can_keep

SPARSE_KINDS = ("sparse", "two_of_four", "masked", "sparse_codes")


class StoredLinear(nn.Module):
    """`y = M x + bias` with M in a stored form: numbers are parameters, permutations buffers.

    A sparse matrix is kept for further steps after the first product with few tokens.
    """

    def __init__(self, form: Form, bias: Tensor | None = None) -> None:
        super().__init__()
        self._kept: KeptMatrix | None = None
        self.kind, self.settings = kind_of(form), settings_of(form)
        for name, tensor in tensors_of(form).items():
            if name in form.WEIGHTS:
                self.register_parameter(name, _frozen(tensor))
            else:
                # Empty tensors are not saved, since transformers treats all of them as the same
                # tensor. They are created on the CPU, so that a network on "meta" is complete
                # without them.
                is_empty = tensor.numel() == 0
                buffer = torch.empty_like(tensor, device="cpu") if is_empty else tensor
                self.register_buffer(name, buffer, persistent=not is_empty)
        self.bias = None if bias is None else _frozen(bias)

    @property
    def form(self) -> Form:
        """The form, sharing the module's tensors."""
        kind: Callable[..., Form] = FORMS[self.kind]
        names = [f.name for f in fields(FORMS[self.kind]) if f.name not in self.settings]
        return kind(**{name: getattr(self, name) for name in names}, **self.settings)

    @property
    def uncounted(self) -> int:
        """Numbers of the form that are not parameters: quantized weights and sparse indices."""
        form = self.form
        return count(form) - sum(int(getattr(form, name).numel()) for name in form.WEIGHTS)

    @property
    def in_features(self) -> int:
        return self.form.shape[1]

    @property
    def out_features(self) -> int:
        return self.form.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        values: Any = self.values if self.kind in SPARSE_KINDS else None
        if values is not None and can_keep(values, x):
            y = self._kept_matrix(values).product(x)
        else:
            y = self.form.apply(x)
        return y if self.bias is None else y + self.bias

    def _kept_matrix(self, values: Tensor) -> KeptMatrix:
        """Return the matrix of few tokens, made again if the numbers have changed."""
        if self._kept is None or not self._kept.is_of(values):
            form: Any = self.form
            self._kept = KeptMatrix(values, form.matrix.detach())
        return self._kept

    def drop_kept_matrix(self) -> None:
        """Free the kept matrix; the next step of few tokens makes it again."""
        self._kept = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and other processes make the kept matrix again when they need it."""
        return self.__dict__ | {"_kept": None}


class LowRankLinear(nn.Module):
    """`y = up(down(x)) + sparse(x)`, with the bias in `up`; sparse may be None.

    r (in + out) parameters instead of in * out, or fewer if a part has a stored form.
    """

    def __init__(self, down: Any, up: Any, sparse: Any = None) -> None:  # nn.Linear, StoredLinear
        super().__init__()
        self.down, self.up, self.sparse = down, up, sparse

    @property
    def in_features(self) -> int:
        return int(self.down.in_features)

    @property
    def out_features(self) -> int:
        return int(self.up.out_features)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        y: Tensor = self.up(self.down(x))
        out: Tensor = y if self.sparse is None else y + self.sparse(x)
        return out


def _frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().contiguous(), requires_grad=False)


def _matrix_module(matrix: Matrix, bias: Tensor | None = None) -> nn.Module:
    """Return a module with the tensors of a matrix, frozen and not copied."""
    if not isinstance(matrix, Tensor):
        return StoredLinear(matrix, bias)
    return linear_module(matrix, bias)


def linear_module(matrix: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """Return a linear module of a matrix [out, in] and a bias [out], frozen and not copied."""
    out_features, in_features = matrix.shape
    with torch.device("meta"):
        module = nn.Linear(in_features, out_features, bias=bias is not None)
    module.weight = _frozen(matrix)
    if bias is not None:
        module.bias = _frozen(bias)
    return module


def projection_modules(values: Mapping[str, Projection]) -> dict[str, nn.Module]:
    """Return the modules of projection values by name. A shared `down` becomes a single module."""
    downs: dict[tuple[Any, ...], nn.Module] = {}
    modules: dict[str, nn.Module] = {}
    for name, value in values.items():
        if not isinstance(value, LowRank):
            matrix = value.form if isinstance(value, Stored) else value.weight
            modules[name] = _matrix_module(matrix, value.bias)
            continue
        memory = memory_of(value.down)
        if memory not in downs:
            downs[memory] = _matrix_module(value.down)
        sparse = None if value.sparse is None else StoredLinear(value.sparse)
        modules[name] = LowRankLinear(downs[memory], _matrix_module(value.up, value.bias), sparse)
    return modules


def read_projection(module: nn.Module) -> Projection:
    """Return the value of a projection module; tensors are shared, not copied."""
    if isinstance(module, LowRankLinear):
        sparse: Any = None if module.sparse is None else _read_matrix(module.sparse)
        down, up = _read_matrix(module.down), _read_matrix(module.up)
        return LowRank(down, up, _read_bias(module.up), sparse)
    matrix, bias = _read_matrix(module), _read_bias(module)
    return Linear(matrix, bias) if isinstance(matrix, Tensor) else Stored(matrix, bias)


def _read_matrix(module: Any) -> Matrix:
    if isinstance(module, StoredLinear):
        tensors = {name: tensor.detach() for name, tensor in tensors_of(module.form).items()}
        kind: Callable[..., Form] = FORMS[module.kind]
        return kind(**tensors, **module.settings)
    weight: Tensor = module.weight.detach()
    return weight


def _read_bias(module: Any) -> Tensor | None:
    return None if module.bias is None else module.bias.detach()


def describe(modules: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return JSON-able shapes and forms by name, from which `rebuild` makes empty modules.

    "down_of" names the projection that has the same `down`. For a projection of an earlier layer,
    lrcore/models/structure.py adds its path as "down_at".
    """
    described: dict[str, dict[str, Any]] = {}
    owners: dict[int, str] = {}
    for name, module in modules.items():
        low_rank = isinstance(module, LowRankLinear)
        rank = module.down.out_features if low_rank else None
        bias = (module.up if low_rank else module).bias is not None
        entry = {"in": module.in_features, "out": module.out_features, "rank": rank, "bias": bias}
        if low_rank:
            owner = owners.setdefault(id(module.down), name)
            entry |= {"down_of": owner} if owner != name else _describe_form("down", module.down)
            entry |= _describe_form("up", module.up) | _describe_form("sparse", module.sparse)
        else:
            entry |= _describe_form("whole", module)
        described[name] = entry
    return described


def _describe_form(part: str, module: nn.Module | None) -> dict[str, Any]:
    """Return kind, shapes and settings of a stored form; {} for a dense matrix."""
    if not isinstance(module, StoredLinear):
        return {}
    shapes = {name: list(tensor.shape) for name, tensor in tensors_of(module.form).items()}
    entry = {"kind": module.kind, "shapes": shapes}
    return {part: entry | ({"settings": module.settings} if module.settings else {})}


def rebuild(
    described: Mapping[str, dict[str, Any]], dtype: torch.dtype, find: Callable[[str], Any]
) -> dict[str, nn.Module]:
    """Return empty modules of the described shapes; the caller loads the state dict.

    find(path): returns the projection of an earlier layer that shares the `down`.
    """
    modules: dict[str, Any] = {}
    # transformers sorts names in a config, so a projection may precede the owner of the `down`
    for name, entry in sorted(
        described.items(), key=lambda named_entry: "down_of" in named_entry[1]
    ):
        size_in, size_out, rank, bias = entry["in"], entry["out"], entry["rank"], entry["bias"]
        if rank is None:
            modules[name] = _empty(entry.get("whole"), (size_out, size_in), bias, dtype)
            continue
        if "down_of" in entry:
            down = modules[entry["down_of"]].down
        elif "down_at" in entry:
            down = find(entry["down_at"]).down
        else:
            down = _empty(entry.get("down"), (rank, size_in), False, dtype)
        up, sparse = _empty(entry.get("up"), (size_out, rank), bias, dtype), None
        if "sparse" in entry:
            sparse = _empty(entry["sparse"], (size_out, size_in), False, dtype)
        modules[name] = LowRankLinear(down, up, sparse)
    return modules


def _empty(
    form: dict[str, Any] | None, shape: tuple[int, int], bias: bool, dtype: torch.dtype
) -> nn.Module:
    if form is None:
        return nn.Linear(shape[1], shape[0], bias=bias, dtype=dtype)
    kind: Any = FORMS[form["kind"]]
    empty = {
        name: torch.empty(*size, dtype=kind.DTYPES.get(name, dtype))
        for name, size in form["shapes"].items()
    }
    settings = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in form.get("settings", {}).items()
    }
    bias_tensor = torch.empty(shape[0], dtype=dtype) if bias else None
    return StoredLinear(kind(**empty, **settings), bias_tensor)
