"""Basis Sharing (Wang et al., ICLR 2025): neighboring layers share a basis per matrix.

The matrices `[W_l; W_l+1; ...]` of a group are stacked along their outputs and whitened by the
summed second moments of their inputs. Their SVD gives `down`, the shared basis, which is stored
once, and separate coefficients for each layer. Queries, keys, values, gate and up share a basis;
the inputs of output and down projections differ more between layers, so these are factored
separately (SVD-LLM).

This is a step, like pruning layers, and not a method: a rank of a shared basis belongs to several
layers, while a slot, the unit of a policy, belongs to one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...layers.layer import Layer, LowRank
from ...layers.linalg import whitened_svd
from ...layers.statistics import COMMON_TAPS, SECOND, TAPS
from ...models.architectures import architecture_of, decoder_layers
from ...models.layers import clone, projection_paths, read_exact, read_layer, write_layer
from ...models.load import LoadedModel
from ...models.structure import compressed_structures
from ...recipes.history import SharedBases
from ...recipes.recipe import Recipe
from ...system.errors import InputError
from ...system.progress import Progress, silent
from ..calibration.calibrate import Calibration, calibrate
from ..step_rules import check_may_follow
from .derived_models import compare_size, derive_model
from .step_settings import Sharing

SHARED = ("q", "k", "v", "gate", "up")


def share_bases(
    model: LoadedModel, recipe: Recipe, group: int = 2, progress: Progress | None = None
) -> LoadedModel:
    """Return the model with factored matrices that share bases; the model itself is unchanged.

    The matrices of `group` neighboring layers share a basis. recipe: the ratio is the share of the
    decoder-linear parameters to remove; the windows give the moments. Each matrix
    retains the same share: rank k of a group of g matrices [out, in] is the largest with `k (in + g
    out) <= share g in out`. A layer of another size than the previous one starts a new group. The
    history gains `SharedBases`.

    Raises InputError for a group below 1, for an offloaded or compressed model, for a model with
    experts, and for a ratio that leaves a matrix less than rank 1.
    """
    chosen, report = Sharing(group), progress or silent
    check_can_share(model)
    calibration = calibrate(model, recipe, progress, [(tap, SECOND) for tap in COMMON_TAPS])
    network = share_network(model, calibration, recipe.ratio, chosen.group, report)
    name = f"{model.name} shared by {group} {recipe.ratio:.0%}"
    identity = ["shared", group, recipe.ratio, calibration.key]
    made = derive_model(model, name, network, identity)
    account = compare_size(model, made, recipe.seq_len)
    step = SharedBases(group, recipe.ratio, account.removed_params, calibration.protocol)
    return replace(made, history=(*model.history, step), account=account)


def shared_size(model: LoadedModel, ratio: float, group: int = 2) -> int:
    """Return the decoder-linear parameters after `share_bases`, including biases.

    Computed from the shapes, without a decomposition. Raises InputError as `share_bases` does.
    """
    check_can_share(model)
    share, parameters = retained_share(model, ratio), 0
    for members in layer_groups(model.network, Sharing(group).group):
        for name, p in read_layer(model.network, members[0]).matrices().items():
            bias = 0 if p.bias is None else p.bias.numel()
            size = len(members) if name in SHARED else 1
            d_out, d_in = p.weight.shape
            numbers = shared_rank(name, d_out, d_in, size, share) * (d_in + size * d_out)
            parameters += numbers * (len(members) // size) + bias * len(members)
    return parameters


def check_can_share(model: LoadedModel) -> None:
    """Raise InputError if layers of a model cannot share bases."""
    check_may_follow(SharedBases, model.history, model.name, compressed_structures(model.network))
    if model.offloaded:
        raise InputError("Offloaded layers cannot share bases. Load the model without offload.")
    if architecture_of(model.network).experts:
        raise InputError(
            f"'{model.name}' has experts, which cannot share bases. Choose a model without experts."
        )


def share_network(
    model: LoadedModel, calibration: Calibration, ratio: float, group: int, progress: Progress
) -> PreTrainedModel:
    """Return a second network with factored matrices, with one group in memory at a time."""
    network, total = clone(model.network), len(decoder_layers(model.network))
    share = retained_share(model, ratio)
    for members in layer_groups(model.network, group):
        progress("share", members[0], total)
        layers = [read_exact(network, index) for index in members]
        factored: list[dict[str, LowRank]] = [{} for _ in members]
        for name in layers[0].matrices():
            parts = [[position] for position in range(len(members))]
            if name in SHARED:
                parts = [list(range(len(members)))]
            for part in parts:
                indices = [members[position] for position in part]
                second = sum_second_moments(calibration, indices, TAPS[name])
                pairs = factor_together(
                    [layers[position] for position in part], name, second, share
                )
                for position, pair in zip(part, pairs, strict=True):
                    factored[position][name] = pair
        for layer, matrices in zip(layers, factored, strict=True):
            write_layer(network, layer.with_matrices(**matrices))
        tie_bases(network, members)
    progress("share", total, total)
    return network


def retained_share(model: LoadedModel, ratio: float) -> float:
    """Return the share that each matrix retains, so that `ratio` of the parameters is removed.

    The ratio counts decoder-linear parameters, including biases. Raises InputError if no share
    remains.
    """
    layers = (read_layer(model.network, i) for i in range(len(decoder_layers(model.network))))
    weights = sum(p.weight.numel() for layer in layers for p in layer.matrices().values())
    share = 1 - ratio * model.size.decoder_linear / weights
    if share <= 0:
        raise InputError(
            f"A ratio of {ratio} removes all matrices of '{model.name}'. Use a lower ratio."
        )
    return share


def layer_groups(network: PreTrainedModel, size: int) -> Iterator[list[int]]:
    """Yield the indices of up to `size` neighboring layers with matrices of the same shapes."""
    members: list[int] = []
    previous_shapes: object = None
    for index in range(len(decoder_layers(network))):
        matrices = read_layer(network, index).matrices()
        shapes = {name: tuple(p.weight.shape) for name, p in matrices.items()}
        if members and (len(members) == size or shapes != previous_shapes):
            yield members
            members = []
        members.append(index)
        previous_shapes = shapes
    yield members


def sum_second_moments(calibration: Calibration, members: Sequence[int], tap: str) -> Tensor:
    """Return the sum over layers of the second moment of a tap, [in, in], float64."""
    seconds = (calibration.moments(index).second(tap).double() for index in members)
    return torch.stack(list(seconds)).sum(0)


def factor_together(
    layers: Sequence[Layer], name: str, second: Tensor, share: float
) -> list[LowRank]:
    """Return a matrix of several layers as `up_l down`, in the metric of `second` [in, in].

    `down` is the same tensor for all layers. Raises InputError if the share is less than rank 1.
    """
    matrices = [layer.matrices()[name] for layer in layers]
    d_out, d_in = matrices[0].weight.shape
    rank = shared_rank(name, d_out, d_in, len(matrices), share)
    up, _, down = whitened_svd(torch.cat([p.weight for p in matrices]), second)
    dtype = matrices[0].weight.dtype
    basis = down[:rank].to(dtype)
    parts = up[:, :rank].to(dtype).split(d_out)
    return [LowRank(basis, part, p.bias) for part, p in zip(parts, matrices, strict=True)]


def shared_rank(name: str, d_out: int, d_in: int, count: int, share: float) -> int:
    """Return the rank of `count` matrices [d_out, d_in] with a common basis that retain a share.

    Raises InputError if the share is less than rank 1.
    """
    stacked = count * d_out
    rank = int(share * stacked * d_in / (stacked + d_in))
    if rank < 1:
        raise InputError(
            f"{share:.1%} of the matrices '{name}' [{d_out}, {d_in}] is less than one rank. Use a "
            "lower ratio."
        )
    return rank


def tie_bases(network: PreTrainedModel, members: Sequence[int]) -> None:
    """Make the equal bases of a group one module, so that they are stored and counted once."""
    row, layers = architecture_of(network), decoder_layers(network)
    first = layers[members[0]]
    for index in members[1:]:
        for name, path in projection_paths(row, layers[index]).items():
            if name in SHARED:
                layers[index].get_submodule(path).down = first.get_submodule(path).down
