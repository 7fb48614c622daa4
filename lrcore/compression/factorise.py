"""Factorisation: every layer decomposed once with one method, for all ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from ..calibration.calibrate import Calibration, also
from ..calibration.gradients import with_gradients
from ..calibration.outliers import keep_outliers, outlier_ratios, read_outliers
from ..evidence import Evidence
from ..files import OFFLOADED, cache_folder
from ..history import Compressed
from ..may_follow import check_may_follow
from ..methods import LayerFactors, find_method, spectrum, truncate
from ..models.architectures import decoder_layers
from ..models.counting import network_work
from ..models.layers import read_layer, write_layer
from ..models.load import LoadedModel
from ..models.structure import forms_of, measure
from ..options import NO_OPTIONS
from ..plan import Shape
from ..progress import Progress, silent
from ..recipe import Recipe
from ..spectra import Slot, Spectrum
from ..tensor_files import OffloadedList


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
    model's layers hold, see `MAY_FOLLOW`.
    """
    progress, row = progress or silent, find_method(method)
    chosen = row.choose(options or {})
    wanted = Recipe(method=method, options=dict(options or {}))
    check_may_follow(Compressed, model.history, model.name, forms_of(model.network), wanted)
    if row.reads_gradients(chosen):
        calibration = with_gradients(model, calibration, progress)
    total = len(decoder_layers(model.network))
    seen = also(model, calibration, row.reads(chosen) - row.needs, progress)
    offloaded = OffloadedList(cache_folder() / OFFLOADED, model.device) if model.offloaded else None
    layers: OffloadedList | list[LayerFactors] = [] if offloaded is None else offloaded
    spectra: dict[Slot, Spectrum] = {}
    known, counted = read_outliers(calibration.folder), []
    for index in range(total):
        progress("factorise", index, total)
        layer, moments = read_layer(model.network, index), seen.moments(index)
        layer_factors = row.factor(layer, moments, chosen)
        spectra |= {
            (index, name): spectrum(index, name, factor) for name, factor in layer_factors.items()
        }
        if not known:
            counted.append(outlier_ratios(layer, moments))
        layers.append(layer_factors)
    if not known:
        keep_outliers(calibration.folder, counted)
    progress("factorise", total, total)
    evidence = Evidence(spectra, calibration.influence)
    evidence = evidence.with_measurement("outliers", known or counted)
    return Factorisation(method, layers, evidence, calibration, shape_of(model), chosen)


def truncate_layer(
    network: PreTrainedModel, index: int, layer_factors: LayerFactors, ranks: Mapping[Slot, int]
) -> None:
    """Replace layer `index` of `network` by itself truncated to its ranks."""
    own = {component: rank for (layer, component), rank in ranks.items() if layer == index}
    write_layer(network, truncate(read_layer(network, index), layer_factors, own))


def shape_of(model: LoadedModel) -> Shape:
    """The sizes of a model that the account of a plan needs."""
    size = measure(model.network)
    head = model.network.get_output_embeddings().weight.numel()
    layers = len(decoder_layers(model.network))
    return Shape(
        size.parameters,
        size.decoder_linear,
        size.bytes_per_value,
        layers,
        size.kv_values,
        head,
        network_work(model.network),
    )
