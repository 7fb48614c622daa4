"""SliceGPT (Ashkboos et al., ICLR 2024): a narrower residual stream, cut along the least energy.

The dense network is equivalent in any orthogonal basis of the stream (section 3.1). With rotations
"block", each attention, each MLP and the head reads the stream in a separate basis: the
eigenvectors of the second moment of the normalized input, computed with the layers before it
already sliced (section 3.3). Matrices in the residual path convert from one basis to the next. With
"one", all share the eigenvectors of the mean of the dense network's moments, and the residual path
needs no matrix. The columns with the least eigenvalues are removed.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ....checkpoints.standard.standard_fit import structural_reasons
from ....layers.modules.sliced import COMPONENTS, StreamNorm, residual_parameters
from ....layers.statistics import SecondMomentSum, at_least_float32
from ....models.architectures import architecture_of, decoder_layers, text_config
from ....models.layers import clone
from ....models.load import LoadedModel
from ....models.stream import LayerStream
from ....models.structure import compressed_structures
from ....recipes.history import Sliced, StandardFit
from ....recipes.recipe import Recipe
from ....system.errors import InputError, unknown
from ....system.progress import Progress, silent
from ....system.threads import threads_for
from ...calibration.calibrate import make_calibration_windows
from ...step_rules import check_may_follow
from ..derived_models import compare_size, derive_model
from ..step_settings import ROTATIONS
from .rotation import (
    block_norms,
    check_stream,
    install_sliced_layer,
    last_norm,
    rotate_embeddings,
    rotate_head,
    rotate_input,
    rotate_output,
    stream_linear,
)


def slice_hidden(
    model: LoadedModel,
    recipe: Recipe,
    rotations: str = "block",
    multiple: int = 1,
    progress: Progress | None = None,
) -> LoadedModel:
    """Return the model with a narrower residual stream; the model itself is unchanged.

    recipe: the ratio is the share of the decoder-linear parameters to remove; the residual matrices
    count against it. The windows determine the bases. The width is the largest multiple of
    `multiple` that reaches the ratio. rotations: "block", a basis for each attention, each MLP
    and the head; or "one" for all.

    Embeddings and positions become narrower too. A head that was tied to the embeddings is
    separated, because only the head includes the last norm's scale and the basis: the total number
    of parameters may then grow, which the account shows. The history gains `Sliced`.

    Raises InputError for an unknown choice, for a ratio that no width reaches, for a compressed,
    sliced or offloaded model, and for a family whose layers are not an attention and then an MLP,
    each x + f(norm(x)).
    """
    check_can_slice(model, rotations)
    width = stream_width(model, recipe.ratio, rotations, multiple)
    windows = make_calibration_windows(model, recipe)
    network = slice_network(model.network, windows.tokens, width, rotations, progress or silent)
    of = text_config(model.network).hidden_size
    sliced = derive_model(
        model,
        f"{model.name} sliced to {width} of {of}",
        network,
        ["sliced", width, rotations, windows.key],
    )
    account, reasons = compare_size(model, sliced, recipe.seq_len), structural_reasons(network)
    step = Sliced(
        width,
        of,
        rotations,
        requested=recipe.ratio,
        removed=account.removed_params,
        residual_parameters=sum(map(residual_parameters, decoder_layers(network))),
        calibration=windows.protocol
        | {"windows": len(windows.tokens), "tokens": windows.tokens.numel()},
        stock=StandardFit(not reasons, tuple(reasons)),
    )
    return replace(sliced, history=(*model.history, step), account=account)


def check_can_slice(model: LoadedModel, rotations: str) -> None:
    """Raise InputError if the stream of the model cannot be sliced."""
    if rotations not in ROTATIONS:
        raise unknown("rotations", rotations, ROTATIONS)
    check_may_follow(Sliced, model.history, model.name, compressed_structures(model.network))
    if model.offloaded:
        raise InputError("Offloaded layers cannot be sliced. Load the model without offload.")
    check_stream(model.network)


def sliced_size(
    model: LoadedModel, ratio: float, rotations: str = "block", multiple: int = 1
) -> dict[str, int]:
    """Return the sizes after `slice_hidden`, without running it.

    Keys "width", "of", "parameters" and "decoder_parameters". Raises InputError as `slice_hidden`
    does.
    """
    check_can_slice(model, rotations)
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
    """Return the largest width, a multiple of `multiple`, that removes at least a share `ratio`.

    The ratio counts decoder-linear parameters. Raises InputError for a multiple outside 1 to the
    width.
    """
    of, linear, dense = (
        text_config(model.network).hidden_size,
        _linear_parameters(model, rotations),
        model.size.decoder_linear,
    )
    if not 1 <= multiple <= of:
        raise InputError(
            f"multiple = {multiple} is out of range: the stream of '{model.name}' is {of} wide. "
            f"Enter 1 to {of}."
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
            f"{removed(multiple):.1%} of its decoder-linear parameters, including the residual "
            f"matrices, which is less than {ratio:.1%}. Use a lower ratio."
        )
    return width


def _linear_parameters(model: LoadedModel, rotations: str) -> Callable[[int], int]:
    """Return a function from width to decoder-linear parameters, with the residual matrices."""
    layers = range(len(decoder_layers(model.network)))
    per_column, fixed = (
        sum(counts)
        for counts in zip(*(stream_linear(model.network, index) for index in layers), strict=True)
    )
    matrices = len(COMPONENTS) * len(layers) if rotations == "block" else 0
    return lambda width: per_column * width + fixed + matrices * width**2


@torch.no_grad()
def slice_network(
    dense: PreTrainedModel, tokens: Tensor, width: int, rotations: str, progress: Progress
) -> PreTrainedModel:
    """Return a second network with a stream of `width`; the dense network is unchanged.

    The bases are computed on tokens [n, t]. The unit of work is a layer. Each component runs once
    in the current basis; the full-width stream after it, [n, t, d], determines the next basis.
    """
    network, norm = clone(dense), last_norm(dense)
    normed = StreamNorm(text_config(dense).hidden_size, norm.eps)
    stream = LayerStream(network, tokens)
    hidden, layers = stream.hidden, len(decoder_layers(network))
    if rotations == "one":
        q = principal(mean_moment(dense, tokens, progress), width)
        hidden.clear()  # the basis is known, so the hidden states are not needed

    def basis() -> Tensor:
        return (
            q
            if rotations == "one"
            else principal(second_moment(normed(_rows(part)) for part in hidden), width)
        )

    hidden[:] = map(norm.center, hidden)
    q = basis()
    rotate_embeddings(network, q)
    hidden[:] = [part @ q.to(part) for part in hidden]
    for index in range(layers):
        progress("slice", index, layers)
        layer = install_sliced_layer(network, index)
        for component in COMPONENTS:
            rotate_input(network, index, component, q)
            for number, part in enumerate(hidden):
                args, kwargs = stream.call(index, number)
                hidden[number] = part @ q.T.to(part) + norm.center(
                    layer.component_output(component, part, *args, **kwargs)
                )
            following = basis()
            rotate_output(network, index, component, q, following)
            q = following
            hidden[:] = [part @ q.to(part) for part in hidden]
    rotate_head(network, q)
    progress("slice", layers, layers)
    return network


def principal(moment: Tensor, width: int) -> Tensor:
    """Return the eigenvectors [d, width] of the largest eigenvalues of a moment [d, d], float64.

    No other subspace contains more energy.
    """
    with threads_for(moment):
        vectors: Tensor = torch.linalg.eigh(moment).eigenvectors.flip(1)
    return vectors[:, :width].contiguous()


def second_moment(parts: Iterable[Tensor]) -> Tensor:
    """Return E[x x^T] over parts [n, d] of a signal, [d, d] float64."""
    total, tokens = SecondMomentSum(), 0
    for part in parts:
        total.add(part)
        tokens += len(part)
    return total.total() / tokens


@torch.inference_mode()
def mean_moment(dense: PreTrainedModel, tokens: Tensor, progress: Progress) -> Tensor:
    """Return the mean second moment of the normalized inputs of all components and the head.

    Of the dense network, [d, d] float64.
    """
    network, norm = clone(dense), last_norm(dense)
    normed, layers = (
        StreamNorm(text_config(dense).hidden_size, norm.eps),
        len(decoder_layers(dense)),
    )
    stream, total = LayerStream(network, tokens), SecondMomentSum()
    for index in range(layers):
        progress("bases", index, layers)
        with ExitStack() as stack:
            for module in block_norms(network, index):
                handle = module.register_forward_pre_hook(
                    lambda _module, args: total.add(normed(norm.center(_rows(args[0]))))
                )
                stack.callback(handle.remove)
            stream.run(index)
    for part in stream.hidden:
        total.add(normed(norm.center(_rows(part))))
    return total.total() / (tokens.numel() * (len(COMPONENTS) * layers + 1))


def _rows(x: Tensor) -> Tensor:
    """Return [..., d] as [n, d], in float32 at least: float16 would lose the small eigenvalues."""
    return at_least_float32(x.flatten(0, -2))
