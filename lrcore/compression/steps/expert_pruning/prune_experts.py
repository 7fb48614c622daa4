"""Pruning of routed experts: each layer loses the same number.

The result is a smaller dense model of the same family. Criterion activation is REAP (Lasby et al.
2025): the experts with the least mean norm of their contribution to the output,
`E w_e(x) |f_e(x)|` over the tokens routed to them, all at once. Criterion loss: layer by layer, one
expert after another, each time the expert without which the loss of the tokens is least; with
`merge`, experts may also be merged into another expert.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ....layers.experts import route_tokens
from ....layers.layer import MLP
from ....layers.statistics import SAMPLE
from ....models.architectures import decoder_layers
from ....models.layers import clone, read_layer
from ....models.load import LoadedModel
from ....models.stream import LayerStream
from ....models.structure import compressed_structures
from ....recipes.history import DROPPED, ExpertsPruned
from ....recipes.recipe import Recipe
from ....system.errors import InputError
from ....system.progress import Progress, silent
from ...calibration.calibrate import make_calibration_windows
from ...evidence.losses import BATCH, LENGTH, WINDOWS, mean_loss
from ...step_rules import check_may_follow
from ..derived_models import compare_size, derive_model
from ..step_settings import ExpertPruning
from .merging import merge_experts, nearest_expert, outputs
from .mixtures import (
    Mixture,
    expert_count,
    expert_groups,
    mixture_of,
    retain_experts,
    route_to,
    set_expert_count,
)

Rows = dict[tuple[nn.Module, str], Tensor]  # see `Mixture.rows`
Pruned = tuple[int, int, int]  # layer, expert, and the expert it was merged into, or DROPPED


def prune_experts(
    model: LoadedModel,
    recipe: Recipe,
    pruning: ExpertPruning,
    progress: Progress | None = None,
) -> LoadedModel:
    """Return the model with fewer routed experts per layer; the model itself is unchanged.

    The experts are selected on the calibration text of the recipe: by activation on all windows,
    or by loss on the first 32 of them, shortened to 128 tokens. By loss, each candidate takes a
    pass from its layer on, or two if it may be merged.

    The history gains `ExpertsPruned`. Raises InputError for a model without experts, for a number
    that leaves fewer experts than a token is routed to, and for a compressed model.
    """
    count = check_can_prune_experts(model, pruning)
    windows, progress = make_calibration_windows(model, recipe), progress or silent
    network = clone(model.network)
    with torch.no_grad():
        pruned = CRITERIA[pruning.criterion](network, windows.tokens, pruning, progress)
    set_expert_count(network, count - pruning.experts)
    made = derive_model(
        model,
        f"{model.name} without {pruning.experts} of {count} experts",
        network,
        ["without experts", sorted(pruned)],
    )
    step = ExpertsPruned(pruning.criterion, tuple(pruned), count, windows.protocol)
    return replace(
        made, history=(*model.history, step), account=compare_size(model, made, recipe.seq_len)
    )


def check_can_prune_experts(model: LoadedModel, pruning: ExpertPruning) -> int:
    """Return the number of experts in a layer.

    Raises InputError if the settings cannot be applied to the model.
    """
    count, active = expert_count(model.network), 0
    if count:
        check_may_follow(
            ExpertsPruned, model.history, model.name, compressed_structures(model.network)
        )
        layers = range(len(decoder_layers(model.network)))
        mixtures = (mixture_of(model.network, index) for index in layers)
        active = next((mixture.active for mixture in mixtures if mixture is not None), 0)
    if not active:  # no experts, or all layers with experts were dropped
        raise InputError(
            f"'{model.name}' has no routed experts. Use `prune-layers` to drop layers, or "
            "`compress` to make them smaller."
        )
    if count - pruning.experts < active:
        raise InputError(
            f"Cannot drop {pruning.experts} experts: '{model.name}' has {count} routed experts in "
            f"a layer and routes a token to {active}. Drop at most {count - active}."
        )
    groups = expert_groups(model.network)
    is_too_small = count - pruning.experts < 2 * groups  # groups are ranked by their best two
    if groups > 1 and (pruning.experts % groups or is_too_small or pruning.criterion == "loss"):
        raise InputError(
            f"'{model.name}' routes tokens by {groups} groups of {count // groups} experts. Drop a "
            f"multiple of {groups}, by activation, and keep at least two per group."
        )
    if pruning.merge and pruning.criterion != "loss":
        raise InputError("Merging experts requires criterion 'loss'.")
    return count


@dataclass(frozen=True, eq=False)
class _ExpertUsage:
    """Activation and usage [E] of a layer's experts on tokens, and inputs [n, d]."""

    activation: Tensor
    usage: Tensor
    inputs: Tensor


def _observe(stream: LayerStream, index: int, mixture: Mixture) -> _ExpertUsage:
    """Run a layer without advancing and return the usage of the experts.

    activation: `E w |f(x)|` over the tokens of an expert, 0 without tokens.
    """
    experts = read_layer(stream.network, index).experts
    assert experts is not None  # the layer has a mixture
    totals, usage = torch.zeros(2, len(experts.mlps), dtype=torch.float64)
    inputs: list[Tensor] = []

    def hook(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        batch = route_tokens(experts, *args[:3])
        x = batch.inputs
        inputs.append(x[:: max(1, len(x) * len(stream.hidden) // SAMPLE)])
        for number, mlp in enumerate(experts.mlps):
            expert_inputs, weights = batch.for_expert(number)
            norms = outputs(mlp, expert_inputs).float().norm(dim=-1) * weights
            totals[number] += float(norms.sum())
            usage[number] += len(expert_inputs)

    handle = mixture.experts.register_forward_pre_hook(hook)
    try:
        stream.run(index, advance=False)
    finally:
        handle.remove()
    return _ExpertUsage(totals / usage.clamp_min(1), usage, torch.cat(inputs)[:SAMPLE])


def prune_by_activation(
    network: PreTrainedModel, tokens: Tensor, pruning: ExpertPruning, progress: Progress
) -> list[Pruned]:
    """Remove the experts of least activation on tokens [n, t] and return them."""
    stream, total = LayerStream(clone(network), tokens), len(decoder_layers(network))
    pruned: list[Pruned] = []
    for index in range(total):
        progress("activation", index, total)
        if (observed := mixture_of(stream.network, index)) is not None:
            activation = _observe(stream, index, observed).activation
            groups = expert_groups(network)
            order = activation.unflatten(0, (groups, -1)).argsort(dim=1, stable=True)
            first = torch.arange(groups).unsqueeze(1) * order.shape[1]  # expert of each group
            dropped = (order + first)[:, : pruning.experts // groups].flatten()
            dropped = dropped[activation[dropped].argsort(stable=True)].tolist()
            retained = [number for number in range(len(activation)) if number not in dropped]
            pruned += [(index, number, DROPPED) for number in dropped]
            mixture = mixture_of(network, index)
            assert mixture is not None  # the clone has a mixture
            retain_experts(mixture, retained, mixture.rows())
        stream.run(index)
    progress("activation", total, total)
    return pruned


def prune_by_loss(
    network: PreTrainedModel, tokens: Tensor, pruning: ExpertPruning, progress: Progress
) -> list[Pruned]:
    """Remove experts in sequence, from the first layer to the last, and return them.

    Each time the expert without which the mean token loss on tokens [n, t] is least.
    """
    tokens = tokens[:WINDOWS, :LENGTH]
    stream, total = LayerStream(network, tokens, BATCH), len(decoder_layers(network))
    pruned: list[Pruned] = []
    for index in range(total):
        if (mixture := mixture_of(network, index)) is not None:
            batches = tokens.to(network.device).split(BATCH)
            layer = _LayerPruning(index, mixture, stream, batches, pruning)
            for done in range(pruning.experts):
                progress("loss", index * pruning.experts + done, total * pruning.experts)
                pruned.append(layer.prune_expert())
            retain_experts(mixture, layer.retained, layer.rows)
        stream.run(index)
    progress("loss", total * pruning.experts, total * pruning.experts)
    return pruned


class _LayerPruning:
    """The pruning of a layer by loss: the retained experts, and the tensors of the router."""

    def __init__(
        self,
        index: int,
        mixture: Mixture,
        stream: LayerStream,
        batches: Sequence[Tensor],
        pruning: ExpertPruning,
    ) -> None:
        self.index, self.mixture, self.stream, self.batches = index, mixture, stream, batches
        self.pruning, self.rows = pruning, mixture.rows()
        self.observed = _observe(stream, index, mixture)
        self.retained = list(range(len(self.observed.usage)))
        if pruning.merge:  # copy the shared weights, so that merged experts can be written to them
            for name, stack in mixture.experts.named_parameters():
                setattr(mixture.experts, name, nn.Parameter(stack.clone(), requires_grad=False))

    def prune_expert(self) -> Pruned:
        """Drop or merge the expert for which the resulting loss is least."""
        activation, inputs = self.observed.activation, self.observed.inputs
        order = sorted(self.retained, key=lambda number: float(activation[number]))
        candidates = order[: self.pruning.candidates]
        trials = [(number, DROPPED) for number in candidates]
        if self.pruning.merge:
            mlps = self.mlps()
            trials += [
                (number, nearest_expert(mlps, self.retained, number, inputs))
                for number in candidates
            ]
        number, into = min(trials, key=lambda trial: self.loss(*trial))
        if into != DROPPED:
            self.rows = self.rows_with(number, into)
            _write(self.mlps()[into], self.mean(number, into))
            self.observed.usage[into] += self.observed.usage[number]
        self.retained.remove(number)
        return self.index, number, into

    def mlps(self) -> tuple[MLP, ...]:
        """Return all experts, as views of the stacked weights."""
        experts = read_layer(self.stream.network, self.index).experts
        assert experts is not None  # the layer has a mixture
        return experts.mlps

    def loss(self, number: int, into: int) -> float:
        """Return the mean token loss without an expert, or with it merged into another."""
        retained = [expert for expert in self.retained if expert != number]
        network, hidden = self.stream.network, self.stream.hidden
        if into == DROPPED:
            with route_to(self.mixture, retained, self.rows):
                return mean_loss(network, self.index, hidden, self.batches)
        target = self.mlps()[into]
        original = {
            name: (p.weight.clone(), None if p.bias is None else p.bias.clone())
            for name, p in target.matrices().items()
        }
        _write(target, self.mean(number, into))
        try:
            with route_to(self.mixture, retained, self.rows_with(number, into)):
                return mean_loss(network, self.index, hidden, self.batches)
        finally:
            _write(target, original)

    def share(self, number: int, into: int) -> float:
        """Return the weight of an expert in the mean of two, by the tokens routed to each."""
        usage, target_usage = (float(self.observed.usage[expert]) for expert in (number, into))
        return usage / (usage + target_usage) if usage + target_usage else 0.5

    def mean(self, number: int, into: int) -> dict[str, tuple[Tensor, Tensor | None]]:
        mlps = self.mlps()
        return merge_experts(mlps[number], mlps[into], self.share(number, into))

    def rows_with(self, number: int, into: int) -> Rows:
        """Return the router's tensors of all experts, with the mean of both at `into`."""
        share, rows = self.share(number, into), {}
        for key, tensor in self.rows.items():
            dim, rows[key] = list(tensor.shape).index(len(self.observed.usage)), tensor.clone()
            mean = torch.lerp(tensor.select(dim, into), tensor.select(dim, number), share)
            rows[key].select(dim, into).copy_(mean)
        return rows


def _write(mlp: MLP, means: dict[str, tuple[Tensor, Tensor | None]]) -> None:
    for name, (weight, bias) in means.items():
        p = mlp.matrices()[name]
        p.weight.copy_(weight)
        if bias is not None and p.bias is not None:
            p.bias.copy_(bias)


CRITERIA: dict[str, Callable[[PreTrainedModel, Tensor, ExpertPruning, Progress], list[Pruned]]] = {
    "activation": prune_by_activation,
    "loss": prune_by_loss,
}
