"""Whole routed experts that every layer loses: what is left is a smaller dense model of the same
family, to be compressed, measured or exported as any.

activation REAP (Lasby et al. 2025): the experts of least mean norm of what they add to the output,
`E w_e(x) |f_e(x)|` over the tokens routed to them, all at once. loss: layer by layer and one after
another, each time the expert without which the loss of the tokens is least; with `merge`, or merged
into another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...calibration.calibrate import make_calibration_windows
from ...errors import InputError
from ...experts import routed
from ...history import DROPPED, ExpertsPruned
from ...layer import MLP
from ...may_follow import check_may_follow
from ...models.architectures import decoder_layers
from ...models.layers import clone, read_layer
from ...models.load import LoadedModel
from ...models.stream import LayerStream
from ...models.structure import forms_of
from ...progress import Progress, silent
from ...recipe import Recipe
from ...statistics import SAMPLE
from ..derived import compared, derived
from ..evidence.losses import BATCH, LENGTH, WINDOWS, mean_loss
from .merging import merged, nearest, outputs
from .mixtures import (
    Mixture,
    count_in_config,
    expert_count,
    expert_groups,
    keep_experts,
    mixture_of,
    routed_to,
)
from .settings import ExpertPruning

Rows = dict[tuple[nn.Module, str], Tensor]  # see `Mixture.rows`
Pruned = tuple[int, int, int]  # layer, expert, the one it went into or DROPPED


def prune_experts(
    model: LoadedModel,
    recipe: Recipe,
    pruning: ExpertPruning,
    progress: Progress | None = None,
) -> LoadedModel:
    """The model with so many routed experts fewer in every layer that has some, chosen on the
    calibration text of the recipe; the model given is untouched.

    By activation on the recipe's windows, or by loss on the first 32 of them, cut to 128 tokens: a
    pass from the layer on for every candidate, two where it may be merged.
    Its history gains `ExpertsPruned`. Raises InputError for a model without experts, a number that
    leaves fewer than a token is routed to, and a compressed model.
    """
    count = check_pruned(model, pruning)
    windows, progress = make_calibration_windows(model, recipe), progress or silent
    network = clone(model.network)
    with torch.no_grad():
        pruned = ORDERS[pruning.by](network, windows.tokens, pruning, progress)
    count_in_config(network, count - pruning.experts)
    made = derived(
        model,
        f"{model.name} without {pruning.experts} of {count} experts",
        network,
        ["without experts", sorted(pruned)],
    )
    step = ExpertsPruned(pruning.by, tuple(pruned), count, windows.protocol)
    return replace(
        made, history=(*model.history, step), account=compared(model, made, recipe.seq_len)
    )


def check_pruned(model: LoadedModel, pruning: ExpertPruning) -> int:
    """The number of experts in a layer. Raises InputError where so many of them cannot go."""
    count, active = expert_count(model.network), 0
    if count:
        check_may_follow(ExpertsPruned, model.history, model.name, forms_of(model.network))
        layers = range(len(decoder_layers(model.network)))
        mixtures = (mixture_of(model.network, index) for index in layers)
        active = next((own.active for own in mixtures if own is not None), 0)
    if not active:  # or no layer is left of those that had some
        raise InputError(
            f"'{model.name}' has no routed experts. `shorten` drops whole layers, `compress` makes "
            "them smaller."
        )
    if count - pruning.experts < active:
        raise InputError(
            f"'{model.name}' has {count} routed experts in a layer and routes a token to {active}; "
            f"{pruning.experts} of them were to go. Drop at most {count - active}."
        )
    groups = expert_groups(model.network)
    small = count - pruning.experts < 2 * groups  # they are ranked by their best two
    if groups > 1 and (pruning.experts % groups or small or pruning.by == "loss"):
        raise InputError(
            f"'{model.name}' routes tokens to some of {groups} groups of {count // groups} "
            f"experts. Drop a multiple of {groups}, by activation, and keep two in each."
        )
    if pruning.merge and pruning.by != "loss":
        raise InputError("Experts are merged by the loss that is measured with them: choose loss.")
    return count


@dataclass(frozen=True, eq=False)
class _Seen:
    """What one layer's experts do on tokens: activation and usage [E], and inputs [n, d]."""

    activation: Tensor
    usage: Tensor
    inputs: Tensor


def _see(stream: LayerStream, index: int, mixture: Mixture) -> _Seen:
    """Run a layer without advancing. activation: `E w |f(x)|` over the tokens of an expert, 0 where
    it has none.
    """
    experts = read_layer(stream.network, index).experts
    assert experts is not None  # the layer has a mixture
    totals, usage = torch.zeros(2, len(experts.mlps), dtype=torch.float64)
    inputs: list[Tensor] = []

    def note(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        batch = routed(len(experts.mlps), *args[:3])
        x = batch.inputs
        inputs.append(x[:: max(1, len(x) * len(stream.hidden) // SAMPLE)])
        for number, mlp in enumerate(experts.mlps):
            own, weights = batch.of(number)
            norms = outputs(mlp, own).float().norm(dim=-1) * weights
            totals[number] += float(norms.sum())
            usage[number] += len(own)

    handle = mixture.experts.register_forward_pre_hook(note)
    try:
        stream.run(index, advance=False)
    finally:
        handle.remove()
    return _Seen(totals / usage.clamp_min(1), usage, torch.cat(inputs)[:SAMPLE])


def by_activation(
    network: PreTrainedModel, tokens: Tensor, pruning: ExpertPruning, progress: Progress
) -> list[Pruned]:
    """The experts of least activation on tokens [n, t]; they are gone from the network then."""
    stream, total = LayerStream(clone(network), tokens), len(decoder_layers(network))
    pruned: list[Pruned] = []
    for index in range(total):
        progress("activation", index, total)
        if (own := mixture_of(stream.network, index)) is not None:
            activation = _see(stream, index, own).activation
            groups = expert_groups(network)
            each = activation.unflatten(0, (groups, -1)).argsort(dim=1, stable=True)
            first = torch.arange(groups).unsqueeze(1) * each.shape[1]  # expert of every group
            gone = (each + first)[:, : pruning.experts // groups].flatten()
            gone = gone[activation[gone].argsort(stable=True)].tolist()
            kept = [number for number in range(len(activation)) if number not in gone]
            pruned += [(index, number, DROPPED) for number in gone]
            mixture = mixture_of(network, index)
            assert mixture is not None  # as in the clone
            keep_experts(mixture, kept, mixture.rows())
        stream.run(index)
    progress("activation", total, total)
    return pruned


def by_loss(
    network: PreTrainedModel, tokens: Tensor, pruning: ExpertPruning, progress: Progress
) -> list[Pruned]:
    """The experts that go one after another, each that without which the mean token loss on tokens
    [n, t] is least, from the first layer to the last; they are gone from the network then.
    """
    tokens = tokens[:WINDOWS, :LENGTH]
    stream, total = LayerStream(network, tokens, BATCH), len(decoder_layers(network))
    pruned: list[Pruned] = []
    for index in range(total):
        if (mixture := mixture_of(network, index)) is not None:
            batches = tokens.to(network.device).split(BATCH)
            layer = _Layer(index, mixture, stream, batches, pruning)
            for done in range(pruning.experts):
                progress("loss", index * pruning.experts + done, total * pruning.experts)
                pruned.append(layer.lose_one())
            keep_experts(mixture, layer.kept, layer.rows)
        stream.run(index)
    progress("loss", total * pruning.experts, total * pruning.experts)
    return pruned


class _Layer:
    """One layer that loses experts by loss: what is left of them, and what the router has."""

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
        self.seen = _see(stream, index, mixture)
        self.kept = list(range(len(self.seen.usage)))
        if pruning.merge:  # the weights become its own, so that they can be written to
            for name, stack in mixture.experts.named_parameters():
                setattr(mixture.experts, name, nn.Parameter(stack.clone(), requires_grad=False))

    def lose_one(self) -> Pruned:
        """Drop or merge the expert whose loss then is least."""
        tried = sorted(self.kept, key=lambda number: float(self.seen.activation[number]))
        trials = [(number, DROPPED) for number in tried[: self.pruning.candidates]]
        if self.pruning.merge:
            mlps = self.mlps()
            near = (nearest(mlps, self.kept, one, self.seen.inputs) for one, _ in trials)
            trials += [(one, into) for (one, _), into in zip(list(trials), near, strict=True)]
        number, into = min(trials, key=lambda trial: self.loss(*trial))
        if into != DROPPED:
            self.rows = self.rows_with(number, into)
            _write(self.mlps()[into], self.mean(number, into))
            self.seen.usage[into] += self.seen.usage[number]
        self.kept.remove(number)
        return self.index, number, into

    def mlps(self) -> tuple[MLP, ...]:
        """All experts, as views of the stacked weights."""
        experts = read_layer(self.stream.network, self.index).experts
        assert experts is not None  # it has a mixture
        return experts.mlps

    def loss(self, number: int, into: int) -> float:
        """The mean token loss without an expert, or with it merged into another."""
        kept = [one for one in self.kept if one != number]
        network, hidden = self.stream.network, self.stream.hidden
        if into == DROPPED:
            with routed_to(self.mixture, kept, self.rows):
                return mean_loss(network, self.index, hidden, self.batches)
        target = self.mlps()[into]
        before = {
            name: (p.weight.clone(), None if p.bias is None else p.bias.clone())
            for name, p in target.matrices().items()
        }
        _write(target, self.mean(number, into))
        try:
            with routed_to(self.mixture, kept, self.rows_with(number, into)):
                return mean_loss(network, self.index, hidden, self.batches)
        finally:
            _write(target, before)

    def share(self, number: int, into: int) -> float:
        """The share of an expert in the mean of two, by the tokens that were routed to both."""
        own, other = float(self.seen.usage[number]), float(self.seen.usage[into])
        return own / (own + other) if own + other else 0.5

    def mean(self, number: int, into: int) -> dict[str, tuple[Tensor, Tensor | None]]:
        mlps = self.mlps()
        return merged(mlps[number], mlps[into], self.share(number, into))

    def rows_with(self, number: int, into: int) -> Rows:
        """What the router has of every expert, that of `into` being the mean of both."""
        share, rows = self.share(number, into), {}
        for place, tensor in self.rows.items():
            mine, rows[place] = list(tensor.shape).index(len(self.seen.usage)), tensor.clone()
            mean = torch.lerp(tensor.select(mine, into), tensor.select(mine, number), share)
            rows[place].select(mine, into).copy_(mean)
        return rows


def _write(mlp: MLP, means: dict[str, tuple[Tensor, Tensor | None]]) -> None:
    for name, (weight, bias) in means.items():
        p = mlp.matrices()[name]
        p.weight.copy_(weight)
        if bias is not None and p.bias is not None:
            p.bias.copy_(bias)


ORDERS: dict[str, Callable[[PreTrainedModel, Tensor, ExpertPruning, Progress], list[Pruned]]] = {
    "activation": by_activation,
    "loss": by_loss,
}
