"""Basis Sharing (Wang et al., ICLR 2025): neighbouring layers with one basis for a matrix.

The matrices `[W_l; W_l+1; ...]` of a group, stacked along their outputs and whitened by the summed
second moments of their inputs, have one SVD: its right factor, `down`, is the shared basis and is
stored once; every layer has coefficients of its own. Queries, keys, values, gate and up share;
output and down projections, whose inputs differ more, are factored on their own (SVD-LLM).

It is a step of its own, as dropped layers are, and no method: a rank of a shared basis belongs to
several layers, and slots, which policies share a budget between, to one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..calibration.calibrate import Calibration, calibrate
from ..errors import InputError
from ..history import SharedBases
from ..layer import Layer, LowRank
from ..linalg import whitened_svd
from ..may_follow import check_may_follow
from ..models.architectures import architecture_of, decoder_layers
from ..models.layers import clone, projection_paths, read_exact, read_layer, write_layer
from ..models.load import LoadedModel
from ..models.structure import forms_of
from ..progress import Progress, silent
from ..recipe import Recipe
from ..statistics import TAPS
from .derived import compared, derived
from .sharing import Sharing

SHARED = ("q", "k", "v", "gate", "up")


def share_bases(
    model: LoadedModel, recipe: Recipe, group: int = 2, progress: Progress | None = None
) -> LoadedModel:
    """The model with every matrix of its decoder layers factored, those of `group` neighbouring
    layers with a shared basis; the model given is untouched.

    recipe: its ratio is the share of the decoder-linear parameters to remove, on its windows the
    moments are collected. Every matrix keeps the same share: rank k of a group of g matrices
    [out, in] is the largest with `k (in + g out) <= keep g in out`. Layers of other sizes than the
    one before them begin a group. Its history gains `SharedBases`.

    Raises InputError for a group below 1, an offloaded model, one that is compressed or has
    experts, and a ratio that leaves a matrix without a rank.
    """
    chosen, report = Sharing(group), progress or silent
    check(model)
    calibration = calibrate(model, recipe, progress)
    network = shared_network(model, calibration, recipe.ratio, chosen.group, report)
    name = f"{model.name} shared by {group} {recipe.ratio:.0%}"
    identity = ["shared", group, recipe.ratio, calibration.key]
    made = derived(model, name, network, identity)
    account = compared(model, made, recipe.seq_len)
    step = SharedBases(group, recipe.ratio, account.removed_params, calibration.protocol)
    return replace(made, history=(*model.history, step), account=account)


def shared_size(model: LoadedModel, ratio: float, group: int = 2) -> int:
    """The decoder-linear parameters that `share_bases` leaves, biases among them; nothing is
    decomposed. Raises InputError as it does.
    """
    check(model)
    keep, left = kept_share(model, ratio), 0
    for members in groups_of_layers(model.network, Sharing(group).group):
        for name, one in read_layer(model.network, members[0]).matrices().items():
            bias = 0 if one.bias is None else one.bias.numel()
            together = len(members) if name in SHARED else 1
            d_out, d_in = one.weight.shape
            numbers = rank_of(name, d_out, d_in, together, keep) * (d_in + together * d_out)
            left += numbers * (len(members) // together) + bias * len(members)
    return left


def check(model: LoadedModel) -> None:
    """Raise InputError for a model whose layers cannot share a basis."""
    check_may_follow(SharedBases, model.history, model.name, forms_of(model.network))
    if model.offloaded:
        raise InputError("Offloaded layers cannot share a basis. Load the model without offload.")
    if architecture_of(model.network).experts:
        raise InputError(f"'{model.name}' has experts, which share no basis. Choose a dense model.")


def shared_network(
    model: LoadedModel, calibration: Calibration, ratio: float, group: int, progress: Progress
) -> PreTrainedModel:
    """A second network whose matrices are factored; one group of layers is in memory at a time."""
    network, total = clone(model.network), len(decoder_layers(model.network))
    keep = kept_share(model, ratio)
    for members in groups_of_layers(model.network, group):
        progress("share", members[0], total)
        layers = [read_exact(network, index) for index in members]
        factored: list[dict[str, LowRank]] = [{} for _ in members]
        for name in layers[0].matrices():
            parts = [[one] for one in range(len(members))]
            if name in SHARED:
                parts = [list(range(len(members)))]
            for part in parts:
                second = summed(calibration, [members[one] for one in part], TAPS[name])
                solved = factor_together([layers[one] for one in part], name, second, keep)
                for one, made in zip(part, solved, strict=True):
                    factored[one][name] = made
        for layer, own in zip(layers, factored, strict=True):
            write_layer(network, layer.with_matrices(**own))
        tie(network, members)
    progress("share", total, total)
    return network


def kept_share(model: LoadedModel, ratio: float) -> float:
    """The share that every matrix keeps so that at least `ratio` of the decoder-linear parameters,
    biases among them, are gone. Raises InputError where nothing would be left.
    """
    layers = (read_layer(model.network, i) for i in range(len(decoder_layers(model.network))))
    weights = sum(p.weight.numel() for layer in layers for p in layer.matrices().values())
    keep = 1 - ratio * model.size.decoder_linear / weights
    if keep <= 0:
        raise InputError(f"A ratio of {ratio} leaves no matrix of '{model.name}'. Ask for less.")
    return keep


def groups_of_layers(network: PreTrainedModel, size: int) -> Iterator[list[int]]:
    """Up to `size` neighbouring layers whose matrices are alike."""
    members: list[int] = []
    before: object = None
    for index in range(len(decoder_layers(network))):
        matrices = read_layer(network, index).matrices()
        shapes = {name: tuple(one.weight.shape) for name, one in matrices.items()}
        if members and (len(members) == size or shapes != before):
            yield members
            members = []
        members.append(index)
        before = shapes
    yield members


def summed(calibration: Calibration, members: Sequence[int], tap: str) -> Tensor:
    """The sum over layers of the second moment of their input at a tap, [in, in], float64."""
    seconds = (calibration.moments(index).second(tap).double() for index in members)
    return torch.stack(list(seconds)).sum(0)


def factor_together(
    layers: Sequence[Layer], name: str, second: Tensor, keep: float
) -> list[LowRank]:
    """One matrix of several layers as `up_l down`, in the metric of `second` [in, in]; `down` is
    the same tensor for all of them. Raises InputError where the share is less than one rank.
    """
    own = [layer.matrices()[name] for layer in layers]
    d_out, d_in = own[0].weight.shape
    rank = rank_of(name, d_out, d_in, len(own), keep)
    up, _, down = whitened_svd(torch.cat([one.weight for one in own]), second)
    dtype = own[0].weight.dtype
    basis = down[:rank].to(dtype)
    parts = up[:, :rank].to(dtype).split(d_out)
    return [LowRank(basis, part, one.bias) for part, one in zip(parts, own, strict=True)]


def rank_of(name: str, d_out: int, d_in: int, count: int, keep: float) -> int:
    """The rank of `count` matrices [d_out, d_in] with one basis that keep a share of their
    parameters. Raises InputError where the share is less than one rank.
    """
    stacked = count * d_out
    rank = int(keep * stacked * d_in / (stacked + d_in))
    if rank < 1:
        raise InputError(
            f"Of the matrices '{name}' [{d_out}, {d_in}] a share of {keep:.1%} is less than one "
            "rank. Ask for a lower ratio."
        )
    return rank


def tie(network: PreTrainedModel, members: Sequence[int]) -> None:
    """Make the equal bases of a group one module, so that they are stored and counted once."""
    row, layers = architecture_of(network), decoder_layers(network)
    first = layers[members[0]]
    for index in members[1:]:
        for name, path in projection_paths(row, layers[index]).items():
            if name in SHARED:
                layers[index].get_submodule(path).down = first.get_submodule(path).down
