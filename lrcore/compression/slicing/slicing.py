"""SliceGPT (Ashkboos et al., ICLR 2024): a narrower residual stream, cut where it holds least
energy.

The dense network is the same in any orthogonal basis of its stream (section 3.1). With rotations
"block" every attention and every MLP, and the head, reads the stream in a basis of its own: the
eigenvectors of the second moment of the normed signal that reaches it through the layers sliced
before (section 3.3), and matrices in the residual path lead from one basis to the next. With "one"
all share the eigenvectors of the mean of the dense network's moments, and the residual path needs
no matrix. The columns of least eigenvalue go.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...calibration.calibrate import make_calibration_windows
from ...checkpoints.stock import structural_reasons
from ...errors import InputError, unknown
from ...history import Sliced, StockFit
from ...may_follow import check_may_follow
from ...models.architectures import architecture_of, decoder_layers, text_config
from ...models.layers import clone
from ...models.load import LoadedModel
from ...models.stream import LayerStream
from ...models.structure import forms_of
from ...modules.sliced import COMPONENTS, StreamNorm, residual_parameters
from ...progress import Progress, silent
from ...recipe import Recipe
from ...statistics import SecondSum, at_least_float32
from ...threads import threads_for
from ..derived import compared, derived
from .rotation import (
    block_norms,
    check_stream,
    last_norm,
    stream_linear,
    take_over,
    turn_embeddings,
    turn_head,
    turn_input,
    turn_output,
)
from .settings import ROTATIONS


def slice_hidden(
    model: LoadedModel,
    recipe: Recipe,
    rotations: str = "block",
    multiple: int = 1,
    progress: Progress | None = None,
) -> LoadedModel:
    """The model with a narrower residual stream; the model given is untouched.

    recipe: its ratio is the share of the decoder-linear parameters to remove, those of the residual
    matrices counted against it; on its windows the bases are found. The width is the largest
    multiple of `multiple` that removes at least as much. rotations: "block", a basis before every
    attention, every MLP and the head; or "one" for all.
    Embeddings and positions become narrower too. A head that was tied to the embeddings no longer
    is, as the last norm's scale and its own basis are in it alone: the parameters of all the model
    may then grow, which its account counts. Its history gains `Sliced`.

    Raises InputError for an unknown choice, a ratio that no width reaches, a compressed or sliced
    model, one whose layers are offloaded, and a family whose layers are not attention and then MLP,
    each x + f(norm(x)).
    """
    check_sliced(model, rotations)
    width = stream_width(model, recipe.ratio, rotations, multiple)
    windows = make_calibration_windows(model, recipe)
    network = sliced_network(model.network, windows.tokens, width, rotations, progress or silent)
    of = text_config(model.network).hidden_size
    made = derived(
        model,
        f"{model.name} sliced to {width} of {of}",
        network,
        ["sliced", width, rotations, windows.key],
    )
    account, reasons = compared(model, made, recipe.seq_len), structural_reasons(network)
    step = Sliced(
        width,
        of,
        rotations,
        requested=recipe.ratio,
        removed=account.removed_params,
        residual_parameters=sum(map(residual_parameters, decoder_layers(network))),
        calibration=windows.protocol
        | {"windows": len(windows.tokens), "tokens": windows.tokens.numel()},
        stock=StockFit(not reasons, tuple(reasons)),
    )
    return replace(made, history=(*model.history, step), account=account)


def check_sliced(model: LoadedModel, rotations: str) -> None:
    """Raise InputError where the stream of this model cannot be sliced."""
    if rotations not in ROTATIONS:
        raise unknown("rotations", rotations, ROTATIONS)
    check_may_follow(Sliced, model.history, model.name, forms_of(model.network))
    if model.offloaded:
        raise InputError("Offloaded layers cannot be rotated. Load the model without offload.")
    check_stream(model.network)


def sliced_size(
    model: LoadedModel, ratio: float, rotations: str = "block", multiple: int = 1
) -> dict[str, int]:
    """What `slice_hidden` leaves, before anything runs: "width", "of", and the "parameters" and
    "decoder_parameters" of the result.

    Raises InputError as it does.
    """
    check_sliced(model, rotations)
    network, row, of = (
        model.network,
        architecture_of(model.network),
        text_config(model.network).hidden_size,
    )
    width = stream_width(model, ratio, rotations, multiple)
    linear = _linear_parameters(model, rotations)(width)
    head, norm = network.get_output_embeddings(), last_norm(network)
    embeddings = [
        network.get_input_embeddings(),
        *([network.get_submodule(row.positions)] if row.positions else []),
    ]
    norms = [network.get_submodule(row.last_norm)]
    norms += [
        module
        for index in range(len(decoder_layers(network)))
        for module in block_norms(network, index)
    ]
    changed = {
        id(p): p.numel() for module in (*embeddings, head, *norms) for p in module.parameters()
    }
    size = model.size
    same = size.parameters - size.decoder_linear - sum(changed.values())
    columns = sum(len(module.weight) for module in (*embeddings, head))
    bias = head.out_features if head.bias is not None or norm.shift is not None else 0
    return {
        "width": width,
        "of": of,
        "parameters": same + linear + columns * width + bias,
        "decoder_parameters": linear,
    }


def stream_width(model: LoadedModel, ratio: float, rotations: str, multiple: int) -> int:
    """The largest width, a multiple of `multiple`, at which at least this share of the
    decoder-linear parameters is gone. Raises InputError for a multiple outside 1 to the width.
    """
    of, linear, dense = (
        text_config(model.network).hidden_size,
        _linear_parameters(model, rotations),
        model.size.decoder_linear,
    )
    if not 1 <= multiple <= of:
        raise InputError(
            f"The width is to be a multiple of {multiple}, but the stream of '{model.name}' is "
            f"{of} wide. Give 1 to {of}."
        )

    def removed(width: int) -> float:
        return 1 - linear(width) / dense

    width = next(
        (width for width in range(of - of % multiple, 0, -multiple) if removed(width) >= ratio),
        None,
    )
    if width is None:
        raise InputError(
            f"Slicing '{model.name}' in steps of {multiple} removes at most "
            f"{removed(multiple):.1%} of its decoder-linear parameters, its "
            f"residual matrices counted; {ratio:.1%} were to go. Ask for less."
        )
    return width


def _linear_parameters(model: LoadedModel, rotations: str) -> Callable[[int], int]:
    """The decoder-linear parameters at every width, those of the residual matrices among them."""
    layers = range(len(decoder_layers(model.network)))
    per_column, fixed = (
        sum(each)
        for each in zip(*(stream_linear(model.network, index) for index in layers), strict=True)
    )
    matrices = len(COMPONENTS) * len(layers) if rotations == "block" else 0
    return lambda width: per_column * width + fixed + matrices * width**2


@torch.no_grad()
def sliced_network(
    dense: PreTrainedModel, tokens: Tensor, width: int, rotations: str, progress: Progress
) -> PreTrainedModel:
    """A second network whose stream is `width` wide, with bases found on tokens [n, t]; the dense
    one is untouched.

    The unit is a layer. A component is run once in its own basis; the whole stream after it, [n, t,
    d], gives the next basis.
    """
    network, norm = clone(dense), last_norm(dense)
    normed = StreamNorm(text_config(dense).hidden_size, norm.eps)
    stream = LayerStream(network, tokens)
    hidden, layers = stream.hidden, len(decoder_layers(network))
    if rotations == "one":
        q = principal(mean_moment(dense, tokens, progress), width)
        hidden.clear()  # nothing more is to be seen: the basis is known

    def basis() -> Tensor:
        return (
            q
            if rotations == "one"
            else principal(second_moment(normed(_rows(part)) for part in hidden), width)
        )

    hidden[:] = map(norm.centre, hidden)
    q = basis()
    turn_embeddings(network, q)
    hidden[:] = [part @ q.to(part) for part in hidden]
    for index in range(layers):
        progress("slice", index, layers)
        layer = take_over(network, index)
        for component in COMPONENTS:
            turn_input(network, index, component, q)
            for number, part in enumerate(hidden):
                args, kwargs = stream.call(index, number)
                hidden[number] = part @ q.T.to(part) + norm.centre(
                    layer.added(component, part, *args, **kwargs)
                )
            following = basis()
            turn_output(network, index, component, q, following)
            q = following
            hidden[:] = [part @ q.to(part) for part in hidden]
    turn_head(network, q)
    progress("slice", layers, layers)
    return network


def principal(moment: Tensor, width: int) -> Tensor:
    """The eigenvectors [d, width] of greatest eigenvalue of a second moment [d, d] float64: no
    other subspace holds more of its energy.
    """
    with threads_for(moment):
        vectors: Tensor = torch.linalg.eigh(moment).eigenvectors.flip(1)
    return vectors[:, :width].contiguous()


def second_moment(parts: Iterable[Tensor]) -> Tensor:
    """E[x x^T] over parts [n, d] of a signal, [d, d] float64."""
    total, tokens = SecondSum(), 0
    for part in parts:
        total.add(part)
        tokens += len(part)
    return total.total() / tokens


@torch.inference_mode()
def mean_moment(dense: PreTrainedModel, tokens: Tensor, progress: Progress) -> Tensor:
    """The mean over all components and the head of the second moment of what each reads of the
    dense network, normed. [d, d] float64
    """
    network, norm = clone(dense), last_norm(dense)
    normed, layers = (
        StreamNorm(text_config(dense).hidden_size, norm.eps),
        len(decoder_layers(dense)),
    )
    stream, total = LayerStream(network, tokens), SecondSum()
    for index in range(layers):
        progress("bases", index, layers)
        with ExitStack() as stack:
            for module in block_norms(network, index):
                add = module.register_forward_pre_hook(
                    lambda _module, args: total.add(normed(norm.centre(_rows(args[0]))))
                )
                stack.callback(add.remove)
            stream.run(index)
    for part in stream.hidden:
        total.add(normed(norm.centre(_rows(part))))
    return total.total() / (tokens.numel() * (len(COMPONENTS) * layers + 1))


def _rows(x: Tensor) -> Tensor:
    """[..., d] -> [n, d], in float32 at least: products of halves would lose the small
    eigenvalues.
    """
    return at_least_float32(x.flatten(0, -2))
