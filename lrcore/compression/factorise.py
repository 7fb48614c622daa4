"""Factorisation: every layer decomposed once with one method, for all ranks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..calibration.calibrate import Calibration, also
from ..calibration.gradients import with_gradients
from ..calibration.outliers import keep_outliers, outlier_ratios, read_outliers
from ..evidence import Evidence
from ..files import OFFLOADED, cache_folder, raise_unless_room
from ..hardware import hardware
from ..history import Compressed
from ..may_follow import check_may_follow
from ..memory import megabytes, raise_unless_free
from ..methods import LayerFactors, find_method, spectrum, truncate
from ..models.architectures import decoder_layers
from ..models.attended_keys import has_attended_keys
from ..models.counting import network_work
from ..models.layers import read_exact, read_layer, write_layer
from ..models.load import LoadedModel
from ..models.structure import forms_of, measure, untied
from ..options import NO_OPTIONS
from ..plan import Shape
from ..precise import exact_device
from ..progress import Progress, silent
from ..recipe import Recipe
from ..spectra import Slot, Spectrum
from ..statistics import ATTENDED_KEYS
from ..tensor_files import OffloadedList, Temporary, memory_of, put_away
from ..units import Work, each, workers
from .factor_memory import check_factors


@dataclass(frozen=True, eq=False)
class Factorisation:
    """One method's decompositions of every layer: all that the sliders need.

    layers[i] holds the factors of decoder layer i. evidence: what policies read. options: a
    value of the method's options dataclass.
    """

    method: str
    layers: Sequence[LayerFactors]
    evidence: Evidence
    calibration: Calibration
    shape: Shape
    options: Any = NO_OPTIONS

    def __repr__(self) -> str:
        slots = f"{len(self.spectra)} slots in {self.shape.layers} layers"
        return f"Factorisation({self.method!r}, {slots})"

    @property
    def spectra(self) -> Mapping[Slot, Spectrum]:
        """The loss curve and the cost of every slot."""
        return self.evidence.spectra

    def with_measurement(self, name: str, value: Any, budget: str = "") -> "Factorisation":
        """The same factors with one piece of evidence more, see `Evidence.with_measurement`."""
        return replace(self, evidence=self.evidence.with_measurement(name, value, budget))


def factorise(
    model: LoadedModel,
    calibration: Calibration,
    method: str,
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
) -> Factorisation:
    """Decompose every layer with one method: the expensive, rank-free half.

    Factors of an offloaded model are offloaded as well.

    Raises InputError for an unknown method or option, and where the method cannot take what the
    model's layers hold, see `MAY_FOLLOW`; Shortage where the decompositions of a layer, or the
    factors of all of them, take more memory than is free, or offloaded ones more of the disk.
    """
    progress, row = progress or silent, find_method(method)
    chosen = row.choose(options or {})
    wanted = Recipe(method=method, options=dict(options or {}))
    check_may_follow(Compressed, model.history, model.name, forms_of(model.network), wanted)
    wanted_by = row.gradients_read_by(chosen)
    calibration = with_gradients(model, calibration, row.gradients(chosen), progress, wanted_by)
    total = len(decoder_layers(model.network))
    more = row.reads(chosen) - row.needs
    if not has_attended_keys(model.network):
        more -= {ATTENDED_KEYS}
    seen = also(model, calibration, more, progress)
    known = read_outliers(calibration.folder, total)
    work = Work("factorise", _Factoring(model, seen, method, chosen, count=not known))
    away = model.offloaded or workers().apart
    if not workers().apart:
        check_factors(model, row, chosen)
    stored = OffloadedList(cache_folder() / OFFLOADED, exact_device(model.device)) if away else None
    units = [_Unit(i, None if stored is None else stored.file()) for i in range(total)]
    layers: list[LayerFactors] = []
    spectra: dict[Slot, Spectrum] = {}
    counted = []
    for unit, made in zip(units, each(work, units, progress), strict=True):
        if stored is not None and unit.file is not None:
            stored.add(made.factors, unit.file)
            if unit.index == 0:
                _check_disk(unit.file.path, total - 1)
        else:
            layers.append(made.factors)
            if unit.index == 0:
                _check_memory(model, made.factors, total - 1)
        spectra |= made.spectra
        counted.append(made.outliers)
    if not known:
        keep_outliers(calibration.folder, counted)
    evidence = Evidence(spectra, calibration.influence)
    evidence = evidence.with_measurement("outliers", known or counted)
    held = layers if stored is None else stored
    return Factorisation(method, held, evidence, calibration, shape_of(model), chosen)


def _check_memory(model: LoadedModel, factors: LayerFactors, left: int) -> None:
    """Raise Shortage where the factors of the layers that are left, as large as those of the first,
    are more than what is free.
    """
    dense = memory_of(read_layer(model.network, 0))
    own = sum(size for place, size in memory_of(factors).items() if place not in dense)
    remedy = "Offload the model (offload, --offload): its factors wait on disk then."
    free = hardware(str(model.device)).free
    raise_unless_free(left * own, _factors_left(left, own), remedy, free)


def _check_disk(first: Path, left: int) -> None:
    """The same of factors on disk, by the file of the first layer's."""
    own = first.stat().st_size
    remedy = (
        "Set LRCORE_CACHE to a folder on a larger disk, or choose a method whose factors are small,"
        " such as a3."
    )
    raise_unless_room(first.parent, left * own, _factors_left(left, own), remedy)


def _factors_left(left: int, own: int) -> str:
    return f"The factors of the layers left, {left:,} times {megabytes(own)},"


def method_options(recipe: Recipe) -> dict[str, Any]:
    """The options that a recipe's method is factorised with: those of the recipe, and where they
    leave one to the budget, what it means there.

    Raises InputError for an unknown method.
    """
    return find_method(recipe.method).given(recipe.options, recipe.budget)


@dataclass(frozen=True)
class _Unit:
    """A layer to factorise. file: where its factors are put, None for in memory."""

    index: int
    file: Temporary | None


@dataclass(frozen=True, eq=False)
class _Factored:
    """One layer's factors, or their places; their spectra; the layer's outlier ratios."""

    factors: Any
    spectra: Mapping[Slot, Spectrum]
    outliers: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class _Factoring:
    """The task of factorising. count: whether outliers are counted, too."""

    model: LoadedModel
    calibration: Calibration
    method: str
    options: Any
    count: bool

    def __call__(self, unit: _Unit, progress: Progress) -> _Factored:
        del progress
        layer = read_exact(self.model.network, unit.index)
        moments = self.calibration.moments(unit.index)
        row = find_method(self.method)
        factors = row.factor(layer, moments, self.options)
        spectra = {
            (unit.index, name): spectrum(unit.index, name, one, row.forms.get(name))
            for name, one in factors.items()
        }
        outliers = outlier_ratios(layer, moments) if self.count else ()
        held = factors if unit.file is None else put_away(factors, unit.file)
        return _Factored(held, spectra, outliers)


def truncate_layer(
    network: PreTrainedModel, index: int, layer_factors: LayerFactors, ranks: Mapping[Slot, int]
) -> None:
    """Replace layer `index` of `network` by itself truncated to its ranks."""
    own = {component: rank for (layer, component), rank in ranks.items() if layer == index}
    write_layer(network, truncate(read_exact(network, index), layer_factors, own))


def shape_of(model: LoadedModel) -> Shape:
    """The sizes of a model that the account of a plan needs."""
    size = measure(model.network)
    head = model.network.get_output_embeddings().weight.numel()
    layers = len(decoder_layers(model.network))
    floating = [one for one in untied(model.network)[0].values() if one.dtype.is_floating_point]
    stored = sum(one.dtype.itemsize * math.prod(one.shape) for one in floating)
    return Shape(
        size.parameters,
        size.decoder_linear,
        size.bytes_per_value,
        layers,
        size.kv_values,
        head,
        network_work(model.network),
        stored - size.parameters * size.bytes_per_value,
        sum(read_layer(model.network, index).routed for index in range(layers)),
    )
