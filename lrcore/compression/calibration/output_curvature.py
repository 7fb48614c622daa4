"""Curvature of the loss with respect to the outputs of every projection of the decoder layers.

`R = E[g g^T]` is the gradient factor of K-FAC. g is the gradient of the sum of a window's token
losses, in nats, with respect to the output of a projection at one token; E is the mean over tokens.
A change dW of the projection raises the loss by about `tr(dW^T R dW C) / 2` per token, C the second
moment of its input. The two statistics differ in the next tokens of the loss and in the weights of
the gradients:

* sampled_curvature: at each position the next token is drawn from the predictions of the model, so
  R is the Fisher information: the curvature of the divergence from the model. Gradients longer than
  3 times the median are shortened to that.
* text_curvature: the next tokens are those of the text, without the first and last eighth of the
  gradients of a window. Norms are limited to 0.1 to 10 times their mean (the released code of
  KFAC-SVD, Thoma et al. 2026).

Norms, their median and their mean are those of one projection in one window. A routed expert has
gradients at the tokens routed to it only, which contain the routing weight; its R is the sum over
these tokens, divided by the number of all tokens, and no part of a window is left out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from ...layers.experts import expert_tap
from ...layers.image_tokens import IGNORED, targets
from ...layers.statistics import (
    BLOCK,
    SAMPLED_CURVATURE,
    TEXT_CURVATURE,
    Moments,
    SecondMomentSum,
    at_least_float32,
    check_finite_moments,
)
from ...models.architectures import architecture_of, decoder_layers
from ...models.layers import (
    experts_path,
    layer_shapes,
    output_rows,
    projection_paths,
    read_layer,
    with_separate_experts,
)
from ...models.native import select_rows
from ...system.hardware import hardware
from ...system.memory import megabytes, raise_unless_free
from ...system.progress import Progress
from .layouts import output_widths

FLOAT64 = 8  # bytes per number of a sum
REMEDY = "Choose a method that reads no gradients, or a machine with more memory."
MEDIANS = 3.0  # the largest norm of a gradient in sampled_curvature
LEAST, MOST = 0.1, 10.0  # times the mean: the norms of gradients in text_curvature
MARGIN = 0.125  # of a window, at each end, in text_curvature


@dataclass(frozen=True)
class OutputGradients:
    """The gradients in a curvature of outputs.

    statistic: the name of the curvature. is_sampled: whether the next tokens are drawn from the
    predictions of the model, or those of the text. margin: the fraction of a window's tokens that
    is left out at each end. factors: from the norms [t] of the gradients of a window to the factors
    [t] that multiply these gradients.
    """

    statistic: str
    is_sampled: bool
    margin: float
    factors: Callable[[Tensor], Tensor]


def up_to_medians(norms: Tensor) -> Tensor:
    """Return factors [t] that shorten norms [t] to at most MEDIANS times their median.

    Norms of zero do not count.
    """
    nonzero = norms[norms > 0]
    if not len(nonzero):
        return torch.ones_like(norms)
    limit = MEDIANS * nonzero.median()
    return limit / norms.clamp_min(limit)


def within_means(norms: Tensor) -> Tensor:
    """Return factors [t] that change norms [t] to LEAST to MOST times their mean.

    Norms of zero do not count, and their factor is 1.
    """
    nonzero = norms[norms > 0]
    if not len(nonzero):
        return torch.ones_like(norms)
    mean = nonzero.mean()
    limited = norms.clamp(LEAST * mean, MOST * mean)
    return torch.where(norms > 0, limited / norms, 1.0)


SAMPLED = OutputGradients(SAMPLED_CURVATURE, True, 0.0, up_to_medians)
TEXT = OutputGradients(TEXT_CURVATURE, False, MARGIN, within_means)


def output_curvatures(
    network: PreTrainedModel, tokens: Tensor, progress: Progress, kind: OutputGradients
) -> Iterator[Moments]:
    """Yield the curvatures [out, out] of each layer over windows tokens [n, t].

    Those of routed experts are named as in "up:3". A window takes a forward and a backward pass,
    without gradients of weights. Raises InputError for curvatures that are not finite, and
    ResourceError before the first pass if the sums of all layers need more memory than is free.
    """
    _check_memory(network)
    network = with_separate_experts(network)
    count, length = tokens.shape
    indices = range(len(decoder_layers(network)))
    layers = [_projections(network, index, int(kind.margin * length)) for index in indices]
    sums = [{name: _sum_gradients(p, kind) for name, p in layer.items()} for layer in layers]
    for number, window in enumerate(tokens.to(network.device)):
        progress("gradients", number, count)
        _run_backward(network, window, kind, number)
    progress("gradients", count, count)
    for index, (layer, layer_sums) in enumerate(zip(layers, sums, strict=True)):
        averages = {
            (name, kind.statistic): total.total().div_(count * (length - 2 * layer[name].margin))
            for name, total in layer_sums.items()
        }
        moments = Moments(averages, tokens.numel())
        check_finite_moments(moments, index)
        yield moments
        del averages, moments  # free them before those of the next layer exist


def _check_memory(network: PreTrainedModel) -> None:
    numbers = sum(
        width * (width + BLOCK) // 2
        for index in range(len(decoder_layers(network)))
        for width in output_widths(layer_shapes(network, index)).values()
    )
    need = numbers * FLOAT64
    subject = f"The curvatures of the outputs of all layers ({megabytes(need)})"
    raise_unless_free(need, subject, REMEDY, hardware(str(network.device)).free)


@dataclass(frozen=True, eq=False)
class _Projection:
    """A projection of a layer in a module, which it may share with others.

    width: its number of outputs. rows [width]: the entries of the module's output that belong to
    it, None for all. margin: the number of gradients that are left out at each end of a window.
    """

    module: nn.Module
    width: int
    rows: Tensor | None
    margin: int


def _projections(network: PreTrainedModel, index: int, margin: int) -> dict[str, _Projection]:
    """Return the projections of a layer by name, with those of experts as in "up:3"."""
    row, module = architecture_of(network), decoder_layers(network)[index]
    layer, paths = read_layer(network, index), projection_paths(row, module)
    projections = {
        name: _Projection(
            module.get_submodule(paths[name]),
            layer.matrices()[name].weight.shape[0],
            rows,
            margin,
        )
        for name, rows in output_rows(network, index).items()
    }
    for number, mlp in enumerate(() if layer.experts is None else layer.experts.mlps):
        for name, projection in mlp.matrices().items():
            path = f"{experts_path(row)}.{number}.{name}_proj"
            width = projection.weight.shape[0]
            projections[expert_tap(name, number)] = _Projection(
                module.get_submodule(path), width, None, 0
            )
    return projections


def _sum_gradients(projection: _Projection, kind: OutputGradients) -> SecondMomentSum:
    """Return the sum of g g^T, to which each following backward pass adds."""
    total = SecondMomentSum()
    device = next(projection.module.parameters()).device
    zero_row = torch.zeros(1, projection.width, dtype=torch.float32, device=device)
    total.add(zero_row)  # for experts without tokens

    def add(gradient: Tensor) -> None:
        rows = at_least_float32(gradient.detach().flatten(0, -2))
        if projection.rows is not None:
            rows = select_rows(rows, projection.rows, dim=-1)
        rows = rows[projection.margin : len(rows) - projection.margin]
        total.add(rows * kind.factors(rows.norm(dim=1)).unsqueeze(1))

    def hook(_module: nn.Module, _args: object, out: Tensor) -> None:
        out.register_hook(add)

    projection.module.register_forward_hook(hook)
    return total


def _run_backward(
    network: PreTrainedModel, window: Tensor, kind: OutputGradients, number: int
) -> None:
    """Run a window [t] forward and backward, down to the embedding. number: seed of drawn tokens.

    The gradients of parameters are not computed.
    """
    embedded: list[Tensor] = []

    def start(_module: nn.Module, _args: object, out: Tensor) -> Tensor:
        embedded.append(out.detach().requires_grad_())
        return embedded[-1]

    handle = network.get_input_embeddings().register_forward_hook(start)
    with torch.inference_mode(False), torch.enable_grad():
        ids = window.clone()
        logits = at_least_float32(network(input_ids=ids.unsqueeze(0), use_cache=False).logits[0])
        loss = cross_entropy(logits, next_tokens(logits, ids, kind, number), reduction="sum")
        loss.backward(inputs=embedded)
    handle.remove()


def next_tokens(logits: Tensor, ids: Tensor, kind: OutputGradients, number: int) -> Tensor:
    """Return the next tokens [t] of the loss of a window ids [t] with logits [t, vocabulary].

    Image patches, and the token after the window unless it is drawn, are IGNORED.
    """
    following = torch.cat((targets(ids), ids.new_full((1,), IGNORED)))
    if not kind.is_sampled:
        return following
    generator = torch.Generator().manual_seed(number)
    probabilities = logits.detach().softmax(-1).cpu()  # the same tokens on all devices
    sampled = torch.multinomial(probabilities, 1, generator=generator).squeeze(1).to(ids.device)
    is_patch = following[:-1] == IGNORED
    sampled[:-1] = sampled[:-1].masked_fill(is_patch, IGNORED)
    return sampled
