"""Analysis: spectra of every layer by component and by matrix, raw and activation-aware."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from .as_json import json_text
from .cache import hold, trim
from .calibration.calibrate import Calibration
from .calibration.moment_files import is_kept, layer_file
from .calibration.working_memory import extent, width_read
from .errors import InputError, unknown
from .files import cache_folder, cache_key, draft_of
from .layer import LATENT_MATRICES, MLP, Layer, heads, output_heads
from .linalg import (
    column_squares,
    eigenvalues_descending,
    roots,
    singular_values,
    symmetric,
)
from .methods import COMPONENTS, MATRICES
from .methods.factors import pooled
from .methods.grams import head_gram, output_gram
from .models.architectures import decoder_layers
from .models.layers import layer_shapes, read_exact
from .models.load import LoadedModel
from .notebooks import html_table, measures_figure
from .parallel import at_once
from .places import expanded
from .progress import Progress, silent
from .spectra import condition_number, effective_rank, energy_rank, stable_rank
from .statistics import TAPS, Moments, is_finite
from .tables import frame

if TYPE_CHECKING:
    import pandas as pd

    from .notebooks import Figure

Kind = Literal["raw", "aware"]
ABOUT = ("block_influence", "protocol", "layers", "components")  # what a file has beside the values
FORMAT = 1  # of the cached files; raise it whenever what they hold changes its meaning


@dataclass(frozen=True, eq=False)
class Analysis:
    """Singular values by (layer, name, kind), each [heads or 1, k], descending along k.

    name: a component ("qk", "ov", "mlp") or a matrix ("q", "k", "v", "o", "gate", "up", "down").
    kind: "raw" (the weights alone) or "aware" (weighted by the calibration activations, so that the
    loss at a rank is an error of the component's output).
    """

    spectra: dict[tuple[int, str, str], Tensor]
    block_influence: list[float]
    protocol: dict
    layers: int

    components: tuple[str, ...] = COMPONENTS

    @property
    def matrices(self) -> tuple[str, ...]:
        """The matrices that any layer of this model has, in forward order."""
        there = {name for _, name, _ in self.spectra}
        return tuple(name for name in (*LATENT_MATRICES, *MATRICES) if name in there)

    def heads(self, layer: int, name: str) -> int:
        """Number of heads solved one by one; 0 where the slot is one matrix.

        Raises InputError where the layer or the name is unknown.
        """
        count = self._entry(layer, name, "aware").shape[0]
        return count if count > 1 else 0

    def values(
        self, layer: int, name: str, kind: Kind = "aware", head: int | None = None
    ) -> np.ndarray:
        """Singular values, descending, float64 [k], of one head or of all heads pooled.

        Pooled: the root of the summed squares at each rank. Raises InputError where the layer,
        name, kind or head is unknown.
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
        """Rank measures, one row per layer, name and kind.

        energy_rank: the rank that holds `threshold` (0, 1] of the energy. Raises InputError for a
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
        """For notebooks: effective ranks, a row per layer."""
        table = self.table()
        table = table[table["kind"] == "aware"]
        ranks = table.pivot(index="layer", columns="name", values="effective_rank").round(1)
        names = list(table["name"].unique())
        return html_table("Effective ranks, activation-aware", ranks[names])

    def figure(
        self, measure: str = "effective_rank", kind: Kind = "aware", threshold: float = 0.9
    ) -> "Figure":
        """A plotly figure: a rank measure of every layer, component and matrix as cells, coloured
        by its share of the full rank.

        measure: "effective_rank", "stable_rank" or "energy_rank"; the last one holds `threshold`
        of the energy. Raises InputError for another measure or kind, and as `table` does.
        """
        table = self.table(threshold)
        if kind not in set(table["kind"]):
            raise unknown("kind", kind, ("aware", "raw"))
        title = {"aware": "weighted by activations", "raw": "of the weights alone"}[kind]
        title = f"{measure.replace('_', ' ').capitalize()}, {title}"
        return measures_figure(table[table["kind"] == kind], measure, title)

    def write(self, path: str | Path) -> None:
        """Write the analysis as one safetensors file, which `Analysis.read` reads again.

        Raises Shortage where it cannot be written.
        """
        values = {".".join(map(str, slot)): own for slot, own in self.spectra.items()}
        about = {name: getattr(self, name) for name in ABOUT} | {"order": list(values)}
        tensors = {name: own.cpu().contiguous() for name, own in values.items()}
        with draft_of(path) as draft:
            save_file(tensors, draft, {"analysis": json_text(about)})

    @classmethod
    def read(cls, path: str | Path) -> "Analysis":
        """An analysis that `write` has written.

        Raises InputError where there is no such file, or it holds no analysis.
        """
        path = expanded(path)
        if not path.is_file():
            raise InputError(
                f"No analysis at '{path}'. Check the path; `Analysis.write` makes the file."
            )
        try:
            with safe_open(path, "pt") as opened:
                about = json.loads(opened.metadata()["analysis"])
                spectra = {
                    (int(layer), component, kind): opened.get_tensor(name)
                    for name in about["order"]
                    for layer, component, kind in [name.split(".")]
                }
            known = {name: about[name] for name in ABOUT}
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"'{path}' holds no analysis: {error}. `Analysis.write` makes such a file."
            ) from error
        return cls(spectra, **known | {"components": tuple(known["components"])})

    @cached_property
    def _measures(self) -> "pd.DataFrame":
        """The table without the energy rank, which alone depends on the threshold."""
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


def analyse(
    model: LoadedModel, calibration: Calibration, progress: Progress | None = None
) -> Analysis:
    """The spectra of every layer, raw and activation-aware, by component and by matrix; each layer
    is kept on disk, and read from there the next time.
    """
    progress = progress or silent
    total = len(decoder_layers(model.network))
    folder = cache_folder() / "spectra" / cache_key(FORMAT, calibration.key)
    spectra: dict[tuple[int, str, str], Tensor] = {}
    held = hold(folder)  # for as long as this function runs
    for index in range(total):
        progress("analyse", index, total)
        values = kept_values(model, folder, index)
        if values is None:
            values = layer_values(model, calibration, index)
            with draft_of(layer_file(folder, index)) as draft:
                save_file(values, draft)
        spectra |= {
            (index, name, kind): values[f"{name}.{kind}"]
            for kind in ("raw", "aware")
            for name in (*COMPONENTS, *LATENT_MATRICES, *MATRICES)  # a file has an order of its own
            if f"{name}.{kind}" in values
        }
    trim()
    del held
    progress("analyse", total, total)
    return Analysis(spectra, calibration.block_influence, calibration.protocol, total)


def kept_values(model: LoadedModel, folder: Path, index: int) -> dict[str, Tensor] | None:
    """What is on disk of one layer, [heads or 1, k] each, as `layer_values` gives it; None where
    that is missing, not finite, or not of this layer's shapes.
    """
    if not is_kept(folder, index, counted=False):
        return None
    values, layer = load_file(layer_file(folder, index)), layer_shapes(model.network, index)
    sizes = {name: (1, min(extent(p))) for name, p in layer.matrices().items()}
    a = layer.attention
    if a.factors is None:
        sizes |= {"qk": (a.n_q, a.head_size), "ov": (a.n_q, a.v_size)}
    if layer.mlp is not None:
        sizes["mlp"] = (1, width_read(layer.mlp.down))
    expected = {f"{name}.{kind}": size for name, size in sizes.items() for kind in get_args(Kind)}
    found = {name: tuple(value.shape) for name, value in values.items()}
    exact = all(value.dtype == torch.float64 and is_finite(value) for value in values.values())
    return values if found == expected and exact else None


def layer_values(model: LoadedModel, calibration: Calibration, index: int) -> dict[str, Tensor]:
    """The spectra of one layer, [heads or 1, k] each, as "name.kind", on the CPU."""
    layer, moments = read_exact(model.network, index), calibration.moments(index)
    kinds = {"raw": raw_values(layer), "aware": aware_values(layer, moments)}
    return {
        f"{name}.{kind}": values.cpu().contiguous()
        for kind, own in kinds.items()
        for name, values in own.items()
    }


def raw_values(layer: Layer) -> dict[str, Tensor]:
    """Singular values of the weights alone, [heads or 1, k], by component and matrix.

    Of `W_q,i^T W_k` and `W_o,i W_v` per head, of each matrix, and the norms `|row| |column|` of the
    MLP's neurons.
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
    """Activation-aware singular values, [heads or 1, k], by component and matrix.

    They weight the scores before rotary embedding, the attention's output, the MLP's output, and
    the output of each matrix.
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
    """Singular values of each matrix, [1, k], in the metric of a second moment [in, in]."""
    weights = {name: p.weight for name, p in layer.matrices().items()}
    return at_once(lambda name: singular_values(weights[name], second(name)).unsqueeze(0), weights)


def _neurons(squares: Tensor, mlp: MLP) -> Tensor:
    """Norm of each neuron's share of the output, `sqrt(squares_j) |column_j|`, descending [1, d_f].

    squares [d_f].
    """
    norms = (squares * column_squares(mlp.down.weight)).sqrt()
    return norms.sort(descending=True).values.unsqueeze(0)


def _product_values(left: Tensor, right: Tensor, group: int) -> Tensor:
    """Singular values of `L_i^{1/2} R_g^{1/2}`, [n_q, s]; left [n_q, s, s], right [n_kv, s, s]."""
    return _root_values(left, right.repeat_interleave(group, 0))


def _root_values(left: Tensor, right: Tensor) -> Tensor:
    root, _ = roots(right)
    return eigenvalues_descending(root @ left @ root).sqrt()
