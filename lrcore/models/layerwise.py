"""Check of networks whose decoder layers were found by structure."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..layers.statistics import TAPS
from ..system.errors import InputError, with_article
from ..system.resource_errors import raise_shortage
from .architectures import decoder_layers
from .config import error_line
from .layers import read_layer
from .stream import LayerStream

TOLERANCE = 1e-3  # of the largest state; one token among TOKENS changes the others by more
TOKENS = 32


@torch.inference_mode()
def check_layerwise(network: PreTrainedModel, tokens: Tensor) -> None:
    """Check that a network gives the same states layer by layer as in a single forward pass.

    tokens [n, t >= 2]. Raises InputError if the states differ, if a token attends to later tokens,
    and if no input reaches a matrix that was found.
    """
    try:
        reason = _difference(network, tokens[:, :TOKENS].to(network.device))
    except Exception as error:  # of the family's code, which gets unexpected inputs
        raise_shortage(error)
        reason = error_line(error)
    if reason:
        family = with_article(network.config.model_type)
        raise InputError(
            f"{family[0].upper()}{family[1:]} model has no row in the table of families, and "
            f"cannot be run layer by layer without one ({reason})."
        )


def _difference(network: PreTrainedModel, tokens: Tensor) -> str:
    """Return what differs if a network is run layer by layer, or ""."""
    expected, stream = _last_states(network, tokens), LayerStream(network, tokens)
    unread = [
        name
        for index in range(len(decoder_layers(network)))
        for name in _unread_matrices(stream, index)
    ]
    if len(expected) > 1:
        return "a layer runs more than once"
    if unread:
        return f"no input reaches '{unread[0]}'"
    if not _is_close(torch.cat(stream.hidden), expected[0]):
        return "the states differ"
    changed = tokens.clone()
    changed[:, -1] = (tokens[:, -1] == 0).long()  # another token
    before = _last_states(network, changed)[0][:, :-1]
    return "" if _is_close(before, expected[0][:, :-1]) else "its tokens attend to later tokens"


def _is_close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a.float(), b.float(), atol=TOLERANCE * float(b.abs().max()))


def _unread_matrices(stream: LayerStream, index: int) -> list[str]:
    """Run a layer; return the names of the matrices that no input reaches."""
    # `layer_needs` extends this statistic to the input of every matrix found by structure.
    moments = stream.run(index, {("attn_in", "mean")})
    assert moments is not None  # None only without needs
    names = read_layer(stream.network, index).matrices()
    return [name for name in names if (TAPS[name], "mean") not in moments.values]


def _last_states(network: PreTrainedModel, tokens: Tensor) -> list[Tensor]:
    """Return the output of the last layer [n, t, d] for each time that it runs."""
    states: list[Tensor] = []
    handle = decoder_layers(network)[-1].register_forward_hook(
        lambda _module, _args, out: states.append(out[0] if isinstance(out, tuple) else out)
    )
    with handle:
        network(input_ids=tokens, use_cache=False)
    return states
