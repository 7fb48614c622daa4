"""Analysis: spectra of each layer by component and by matrix, raw and activation-aware."""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..layers.layer import LATENT_MATRICES, MLP, Layer, heads, output_heads
from ..layers.linalg import (
    column_squares,
    eigenvalues_descending,
    roots,
    singular_values,
    symmetric,
)
from ..layers.spectra import condition_number, effective_rank, energy_rank, stable_rank
from ..layers.statistics import COMMON_TAPS, MEAN, SECOND, TAPS, Moments, is_finite
from ..methods import COMPONENTS, MATRICES
from ..methods.factors import pooled
from ..methods.grams import head_gram, output_gram
from ..models.architectures import decoder_layers
from ..models.layers import layer_shapes, read_exact
from ..models.load import LoadedModel
from ..system.as_json import json_text
from ..system.cache import hold, trim
from ..system.errors import InputError, unknown
from ..system.files import cache_folder, cache_key, draft_of
from ..system.notebooks import frame, html_table, measures_figure
from ..system.path_access import expanded
from ..system.progress import Progress, silent
from ..system.threads import at_once
from .calibration.calibrate import Calibration, add_statistics
from .calibration.moment_files import is_kept, layer_file
from .calibration.working_memory import extent, input_width

if TYPE_CHECKING:
    import pandas as pd

    from ..system.notebooks import Figure

Kind = Literal["raw", "aware"]
METADATA = ("block_influence", "protocol", "layers", "components")  # fields in a file's metadata
NEEDS = frozenset({("attn_in", MEAN), *((tap, SECOND) for tap in COMMON_TAPS)})
FORMAT = 1  # of the cached files; increase it when the meaning of the contents changes


@dataclass(frozen=True, eq=False)
class Analysis:
    """Singular values by (layer, name, kind), each [heads or 1, k], descending along k.

    name: a component ("qk", "ov", "mlp") or a matrix ("q", "k", "v", "o", "gate", "up", "down").
    kind: "raw" (only the weights) or "aware" (weighted by the calibration activations, so that the
    loss at a rank is an error of the component's output).
    """

    spectra: dict[tuple[int, str, str], Tensor]
    block_influence: list[float]
    protocol: dict
    layers: int

    components: tuple[str, ...] = COMPONENTS

    @property
    def matrices(self) -> tuple[str, ...]:
        """The matrices that any layer of the model has, in forward order."""
        names = dict.fromkeys(name for _, name, _ in self.spectra if name not in COMPONENTS)
        return tuple(_in_order(names))

    def heads(self, layer: int, name: str) -> int:
        """Return the number of heads that are decomposed separately; 0 for a single matrix.

        Raises InputError for an unknown layer or name.
        """
        count = self._entry(layer, name, "aware").shape[0]
        return count if count > 1 else 0

    def values(
        self, layer: int, name: str, kind: Kind = "aware", head: int | None = None
    ) -> np.ndarray:
        """Return the singular values, descending, float64 [k], of a head or of all heads pooled.

        Pooled: the root of the summed squares at each rank. Raises InputError for an unknown layer,
        name, kind or head.
        """
        entry = self._entry(layer, name, kind)
        if head is None:
            return pooled(entry).cpu().numpy()
        if not 0 <= head < entry.shape[0]:
            raise InputError(
                f"{name} of layer {layer} has heads 0 to {entry.shape[0] - 1}; got {head}."
            )
        return entry[head].cpu().numpy()

    def _entry(self, layer: int, name: str, kind: str) -> Tensor:
        if not 0 <= layer < self.layers:
            raise InputError(f"The model has layers 0 to {self.layers - 1}; got {layer}.")
        if (layer, name, kind) not in self.spectra:
            raise unknown(
                "component, matrix or kind",
                f"{name}/{kind}",
                {f"{n}/{k}" for _, n, k in self.spectra},
            )
        return self.spectra[layer, name, kind]

    def table(self, threshold: float = 0.9) -> "pd.DataFrame":
        """Return rank measures, a row per layer, name and kind.

        energy_rank: the rank with `threshold` (0, 1] of the energy. Raises InputError for a
        threshold out of range.
        """
        if not isinstance(threshold, int | float) or not 0 < threshold <= 1:
            raise InputError(f"threshold must lie in (0, 1], got {threshold!r}.")
        table = self._measures.copy()
        ranks = [energy_rank(pooled(entry), threshold) for entry in self.spectra.values()]
        table.insert(5, "energy_rank", ranks)
        return table

    def __repr__(self) -> str:
        names = dict.fromkeys(name for _, name, _ in self.spectra)
        return f"Analysis({self.layers} layers; {', '.join(names)})"

    def _repr_html_(self) -> str:
        """Return a table of effective ranks for notebooks, a row per layer."""
        table = self.table()
        table = table[table["kind"] == "aware"]
        ranks = table.pivot(index="layer", columns="name", values="effective_rank").round(1)
        names = list(table["name"].unique())
        return html_table("Effective ranks, activation-aware", ranks[names])

    def figure(
        self, measure: str = "effective_rank", kind: Kind = "aware", threshold: float = 0.9
    ) -> "Figure":
        """Return a plotly figure of a rank measure: a cell per layer and component or matrix.

        The color is the measure's share of the full rank. measure: "effective_rank", "stable_rank"
        or "energy_rank", the rank with `threshold` of the energy. Raises InputError for another
        measure or kind, and as `table` does.
        """
        table = self.table(threshold)
        if kind not in set(table["kind"]):
            raise unknown("kind", kind, ("aware", "raw"))
        title = {"aware": "weighted by activations", "raw": "of the weights alone"}[kind]
        title = f"{measure.replace('_', ' ').capitalize()}, {title}"
        return measures_figure(table[table["kind"] == kind], measure, title)

    def write(self, path: str | Path) -> None:
        """Write the analysis as a safetensors file, which `Analysis.read` reads.

        Raises ResourceError if it cannot be written.
        """
        values = {".".join(map(str, slot)): entry for slot, entry in self.spectra.items()}
        metadata = {name: getattr(self, name) for name in METADATA} | {"order": list(values)}
        tensors = {name: entry.cpu().contiguous() for name, entry in values.items()}
        with draft_of(path) as draft:
            save_file(tensors, draft, {"analysis": json_text(metadata)})

    @classmethod
    def read(cls, path: str | Path) -> "Analysis":
        """Return an analysis from a file of `write`.

        Raises InputError if the file does not exist or is not an analysis.
        """
        path = expanded(path)
        if not path.is_file():
            raise InputError(
                f"No analysis at '{path}'. Check the path, or write it with `Analysis.write`."
            )
        try:
            with safe_open(path, "pt") as opened:
                metadata = json.loads(opened.metadata()["analysis"])
                spectra = {
                    (int(layer), component, kind): opened.get_tensor(name)
                    for name in metadata["order"]
                    for layer, _, rest in [name.partition(".")]
                    for component, _, kind in [rest.rpartition(".")]
                }
            fields = {name: metadata[name] for name in METADATA}
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"'{path}' is not an analysis ({error}). Use a file from `Analysis.write`."
            ) from error
        return cls(spectra, **fields | {"components": tuple(fields["components"])})

    @cached_property
    def _measures(self) -> "pd.DataFrame":
        """The table without the energy rank, the only column that depends on the threshold."""
        rows = []
        for (layer, name, kind), entry in self.spectra.items():
            values = pooled(entry)
            rows.append(
                {
                    "layer": layer,
                    "name": name,
                    "kind": kind,
                    "full": len(values),
                    "effective_rank": effective_rank(values),
                    "stable_rank": stable_rank(values),
                    "condition": condition_number(values),
                    "block_influence": self.block_influence[layer],
                }
            )
        return frame(rows)


def analyze(
    model: LoadedModel, calibration: Calibration, progress: Progress | None = None
) -> Analysis:
    """Return the spectra of each layer, raw and activation-aware, by component and by matrix.

    The spectra of each layer are cached on disk.
    """
    progress = progress or silent
    total = len(decoder_layers(model.network))
    folder = cache_folder() / "spectra" / cache_key(FORMAT, calibration.key)
    spectra: dict[tuple[int, str, str], Tensor] = {}
    lock = hold(folder)  # until the function returns
    for index in range(total):
        progress("analyze", index, total)
        values = cached_values(model, folder, index)
        if values is None:
            calibration = add_statistics(model, calibration, NEEDS, progress)
            values = layer_values(model, calibration, index)
            with draft_of(layer_file(folder, index)) as draft:
                save_file(values, draft)
        spectra |= {
            (index, name, kind): values[f"{name}.{kind}"]
            for kind in ("raw", "aware")
            for name in _in_order(dict.fromkeys(key.rpartition(".")[0] for key in values))
            if f"{name}.{kind}" in values
        }
    trim()
    del lock
    progress("analyze", total, total)
    return Analysis(spectra, calibration.block_influence, calibration.protocol, total)


def _in_order(names: Collection[str]) -> list[str]:
    """Return names of components and matrices in forward order, unlike files.

    Matrices that were found by structure follow in the order of `names`.
    """
    known = (*COMPONENTS, *LATENT_MATRICES, *MATRICES)
    return [name for name in known if name in names] + [n for n in names if n not in known]


def cached_values(model: LoadedModel, folder: Path, index: int) -> dict[str, Tensor] | None:
    """Return a layer's cached values, [heads or 1, k] each, as from `layer_values`, or None.

    None if the file is missing, not finite, or has other shapes than the layer.
    """
    if not is_kept(folder, index, counted=False):
        return None
    values, layer = load_file(layer_file(folder, index)), layer_shapes(model.network, index)
    sizes = {name: (1, min(extent(p))) for name, p in layer.matrices().items()}
    a = layer.attention
    if a.factors is None:
        sizes |= {"qk": (a.n_q, a.head_size), "ov": (a.n_q, a.v_size)}
    if layer.mlp is not None:
        sizes["mlp"] = (1, input_width(layer.mlp.down))
    expected = {f"{name}.{kind}": size for name, size in sizes.items() for kind in get_args(Kind)}
    shapes = {name: tuple(value.shape) for name, value in values.items()}
    is_valid = all(value.dtype == torch.float64 and is_finite(value) for value in values.values())
    return values if shapes == expected and is_valid else None


def layer_values(model: LoadedModel, calibration: Calibration, index: int) -> dict[str, Tensor]:
    """Return the spectra of a layer, [heads or 1, k] each, by "name.kind", on the CPU."""
    layer, moments = read_exact(model.network, index), calibration.moments(index)
    kinds = {"raw": raw_values(layer), "aware": aware_values(layer, moments)}
    return {
        f"{name}.{kind}": values.cpu().contiguous()
        for kind, spectra in kinds.items()
        for name, values in spectra.items()
    }


def raw_values(layer: Layer) -> dict[str, Tensor]:
    """Return the singular values of the weights, [heads or 1, k], by component and matrix.

    "qk" and "ov" are the values of `W_q,i^T W_k` and `W_o,i W_v` per head. "mlp" is not
    decomposed: its values are `|row| |column|` of each neuron. The remaining names are matrices.
    """
    a = layer.attention
    values: dict[str, Tensor] = {}
    if a.factors is None:
        q, k, v = (
            heads(p.weight.double(), count)
            for p, count in ((a.q, a.n_q), (a.k, a.n_kv), (a.v, a.n_kv))
        )
        out = output_heads(a.o.weight.double(), a.n_q)
        values = {
            "qk": _product_values(symmetric(q @ q.mT), symmetric(k @ k.mT), a.group),
            "ov": _product_values(symmetric(out.mT @ out), symmetric(v @ v.mT), a.group),
        }
    if layer.mlp is not None:
        rows = (layer.mlp.up.weight.double() ** 2).sum(1)
        if layer.mlp.gate is not None:
            rows = rows + (layer.mlp.gate.weight.double() ** 2).sum(1)
        values["mlp"] = _neurons(rows, layer.mlp)
    return values | _matrix_values(layer, lambda name: None)


def aware_values(layer: Layer, moments: Moments) -> dict[str, Tensor]:
    """Return activation-aware singular values, [heads or 1, k], by component and matrix.

    The loss at a rank is an error of the scores before the rotary embedding ("qk"), of the
    attention's output ("ov"), of the MLP's output ("mlp"), or of the output of a matrix.
    """
    a = layer.attention
    values: dict[str, Tensor] = {}
    if a.factors is None:
        out = output_heads(a.o.weight.double(), a.n_q)
        values = {
            "qk": _product_values(head_gram(a, "q", moments), head_gram(a, "k", moments), a.group),
            "ov": _root_values(symmetric(out.mT @ out), output_gram(a, moments)),
        }
    if layer.mlp is not None:
        values["mlp"] = _neurons(moments.square("mlp_hidden"), layer.mlp)
    return values | _matrix_values(layer, lambda name: moments.second(TAPS[name]))


def _matrix_values(layer: Layer, second: Callable[[str], Tensor | None]) -> dict[str, Tensor]:
    """Return the singular values of matrices, [1, k], in the metric of a second moment [in, in]."""
    weights = {name: p.weight for name, p in layer.matrices().items()}
    return at_once(lambda name: singular_values(weights[name], second(name)).unsqueeze(0), weights)


def _neurons(squares: Tensor, mlp: MLP) -> Tensor:
    """Return the norm of each neuron's share of the output, descending [1, d_f].

    `sqrt(squares_j) |column_j|`; squares [d_f].
    """
    norms = (squares * column_squares(mlp.down.weight)).sqrt()
    return norms.sort(descending=True).values.unsqueeze(0)


def _product_values(left_gram: Tensor, right_gram: Tensor, group: int) -> Tensor:
    """Return the singular values of `L_i^{1/2} R_g^{1/2}`, [n_q, s], g the kv head of query head i.

    left_gram L [n_q, s, s], right_gram R [n_kv, s, s]. group: query heads per kv head.
    """
    return _root_values(left_gram, right_gram.repeat_interleave(group, 0))


def _root_values(left_gram: Tensor, right_gram: Tensor) -> Tensor:
    """Return the singular values of `L^{1/2} R^{1/2}`, [heads, s]; grams [heads, s, s]."""
    root, _ = roots(right_gram)
    return eigenvalues_descending(root @ left_gram @ root).sqrt()
