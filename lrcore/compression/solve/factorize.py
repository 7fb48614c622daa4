"""Factorization: the decomposition of each layer by a method, for all ranks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ...layers.linalg import float64_device
from ...layers.spectra import Slot, Spectrum
from ...layers.statistics import ATTENDED_KEYS
from ...methods import LayerFactors, Method, find_method, spectrum, truncate
from ...models.architectures import decoder_layers, text_config
from ...models.attended_keys import has_attended_keys
from ...models.layers import read_exact, read_layer, write_layer
from ...models.load import LoadedModel
from ...models.model_size import measure, network_work
from ...models.structure import compressed_structures, untied
from ...ranks.evidence import Evidence
from ...ranks.plan import Shape
from ...recipes.history import Compressed
from ...recipes.recipe import Recipe
from ...system.files import OFFLOADED, cache_folder, raise_unless_room
from ...system.hardware import hardware
from ...system.memory import megabytes, raise_unless_free
from ...system.progress import Progress, silent
from ...system.settings import NO_OPTIONS
from ...system.tensor_files import OffloadedList, Temporary, memory_of, put_away
from ...system.units import Work, map_units, workers
from ..calibration.calibrate import Calibration, add_statistics
from ..calibration.gradients import with_gradients
from ..calibration.outliers import outlier_ratios, read_outliers, write_outliers
from ..step_rules import check_may_follow
from .factor_memory import check_factors


@dataclass(frozen=True, eq=False)
class Factorization:
    """A method's decompositions of each layer, for all ranks.

    layers[i]: the factors of decoder layer i. evidence: the measurements that policies read.
    options: a value of the method's options dataclass.
    """

    method: str
    layers: Sequence[LayerFactors]
    evidence: Evidence
    calibration: Calibration
    shape: Shape
    options: Any = NO_OPTIONS

    def __repr__(self) -> str:
        slots = f"{len(self.spectra)} slots in {self.shape.layers} layers"
        return f"Factorization({self.method!r}, {slots})"

    @property
    def spectra(self) -> Mapping[Slot, Spectrum]:
        """The loss curve and the cost of each slot."""
        return self.evidence.spectra

    def with_measurement(self, name: str, value: Any, budget: str = "") -> "Factorization":
        """Return the same factors with a further measurement, see `Evidence.with_measurement`."""
        return replace(self, evidence=self.evidence.with_measurement(name, value, budget))


def factorize(
    model: LoadedModel,
    calibration: Calibration,
    method: str,
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
) -> Factorization:
    """Decompose each layer with a method: the expensive part, independent of ranks.

    The factors of an offloaded model are offloaded as well.

    Raises InputError for an unknown method or option, and if the method cannot be applied to the
    model, see `STEP_RULES`; ResourceError if the decompositions of a layer, or the factors of all
    layers, need more memory than is free, or offloaded factors more disk space.
    """
    progress, row = progress or silent, find_method(method)
    chosen = row.choose(options or {})
    recipe = Recipe(method=method, options=dict(options or {}))
    check_may_follow(
        Compressed, model.history, model.name, compressed_structures(model.network), recipe
    )
    reader = row.gradient_user(chosen)
    calibration = with_gradients(model, calibration, row.gradients(chosen), progress, reader)
    total = len(decoder_layers(model.network))
    extended = _add_missing_statistics(row, chosen, model, calibration, progress)
    outliers = read_outliers(calibration.folder, total)
    task = _FactorTask(model, extended, method, chosen, counts_outliers=not outliers)
    work = Work("factorize", task)
    is_offloaded = model.offloaded or workers().apart
    if not workers().apart:
        check_factors(model, row, chosen)
    stored = (
        OffloadedList(cache_folder() / OFFLOADED, float64_device(model.device))
        if is_offloaded
        else None
    )
    units = [_Unit(i, None if stored is None else stored.file()) for i in range(total)]
    layers: list[LayerFactors] = []
    spectra: dict[Slot, Spectrum] = {}
    counted = []
    for unit, result in zip(units, map_units(work, units, progress), strict=True):
        if stored is not None and unit.file is not None:
            stored.add(result.factors, unit.file)
            if unit.index == 0:
                _check_disk(unit.file.path, total - 1)
        else:
            layers.append(result.factors)
            if unit.index == 0:
                _check_memory(model, result.factors, total - 1)
        spectra |= result.spectra
        counted.append(result.outliers)
    if not outliers:
        write_outliers(calibration.folder, counted)
    evidence = Evidence(spectra, calibration.influence)
    evidence = evidence.with_measurement("outliers", outliers or counted)
    all_factors = layers if stored is None else stored
    return Factorization(method, all_factors, evidence, calibration, shape_of(model), chosen)


def _add_missing_statistics(
    method: Method, options: Any, model: LoadedModel, calibration: Calibration, progress: Progress
) -> Calibration:
    """Return the calibration with all statistics that a method reads with these options."""
    needs = method.reads(options)
    if not has_attended_keys(model.network):
        needs -= {ATTENDED_KEYS}
    return add_statistics(model, calibration, needs, progress)


def _check_memory(model: LoadedModel, factors: LayerFactors, remaining: int) -> None:
    """Raise ResourceError if the factors of the remaining layers need more memory than is free.

    factors: of the first layer, whose size stands for the other layers.
    """
    dense = memory_of(read_layer(model.network, 0))
    size = sum(size for address, size in memory_of(factors).items() if address not in dense)
    remedy = "Offload the model (offload, --offload), so that its factors are stored on disk."
    free = hardware(str(model.device)).free
    raise_unless_free(remaining * size, _remaining_factors(remaining, size), remedy, free)


def _check_disk(first: Path, remaining: int) -> None:
    """Raise ResourceError if the factors of the remaining layers need more disk space than is free.

    first: the file with the factors of the first layer.
    """
    size = first.stat().st_size
    remedy = (
        "Set LRCORE_CACHE to a folder on a larger disk, or choose a method whose factors are small,"
        " such as a3."
    )
    raise_unless_room(first.parent, remaining * size, _remaining_factors(remaining, size), remedy)


def _remaining_factors(remaining: int, size: int) -> str:
    return f"The factors of the remaining layers, {remaining:,} times {megabytes(size)},"


def method_options(recipe: Recipe) -> dict[str, Any]:
    """Return the options of a recipe's method, including those that follow from the budget.

    Raises InputError for an unknown method.
    """
    return find_method(recipe.method).resolve_auto(recipe.options, recipe.budget)


@dataclass(frozen=True)
class _Unit:
    """A layer to factorize. file: for the factors; None keeps them in memory."""

    index: int
    file: Temporary | None


@dataclass(frozen=True, eq=False)
class _Factored:
    """The factors of a layer, or their files; their spectra; the layer's outlier ratios."""

    factors: Any
    spectra: Mapping[Slot, Spectrum]
    outliers: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class _FactorTask:
    """The task of factorizing a layer."""

    model: LoadedModel
    calibration: Calibration
    method: str
    options: Any
    counts_outliers: bool

    def __call__(self, unit: _Unit, progress: Progress) -> _Factored:
        del progress
        layer = read_exact(self.model.network, unit.index)
        moments = self.calibration.moments(unit.index)
        row = find_method(self.method)
        factors = row.factor(layer, moments, self.options)
        spectra = {
            (unit.index, name): spectrum(unit.index, name, factor, row.forms.get(name))
            for name, factor in factors.items()
        }
        outliers = outlier_ratios(layer, moments) if self.counts_outliers else ()
        result = factors if unit.file is None else put_away(factors, unit.file)
        return _Factored(result, spectra, outliers)


def truncate_layer(
    network: PreTrainedModel, index: int, layer_factors: LayerFactors, ranks: Mapping[Slot, int]
) -> None:
    """Replace layer `index` of `network` by the same layer truncated to the ranks."""
    layer_ranks = {component: rank for (layer, component), rank in ranks.items() if layer == index}
    write_layer(network, truncate(read_exact(network, index), layer_factors, layer_ranks))


def shape_of(model: LoadedModel) -> Shape:
    """Return the sizes of a model that the account of a plan needs."""
    size = measure(model.network)
    head = model.network.get_output_embeddings().weight.numel()
    layers = len(decoder_layers(model.network))
    tensors = untied(model.network)[0].values()
    floating = [tensor for tensor in tensors if tensor.dtype.is_floating_point]
    stored = sum(tensor.dtype.itemsize * math.prod(tensor.shape) for tensor in floating)
    return Shape(
        size.parameters,
        size.decoder_linear,
        size.bytes_per_value,
        layers,
        size.kv_values,
        head,
        network_work(model.network),
        stored - size.parameters * size.bytes_per_value,
        sum(read_layer(model.network, index).expert_parameters for index in range(layers)),
        size.state_bytes,
        text_config(model.network).model_type,
    )
