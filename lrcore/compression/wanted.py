"""What the last projection of an attention or an MLP has to give, so that the residual stream of
the compressed model comes to that of the dense one.

Where the families add it as it is, that is what is missing there: the dense stream after the
component less the compressed one before. Where they norm it first,

    N(c) = g c / s(c), s the root mean square of c and g the gains of the norm,

many c give what is missing, t. Wanted is the one that lies as far from c_d, which the dense
projection gives, as t lies from N(c_d), when s is held at that of c_d:

    c = c_d + s(c_d) (t - N(c_d)) / g.

An error of c then counts by one over s(c_d). Where gains are near zero, c is left near c_d.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..models.architectures import norm_after, residual_multiplier
from ..statistics import at_least_float32
from .regression import Regression

LIGHT = 4.0  # the most that a token counts beside one of median size: small streams are noise
DAMPED = 1e-4  # of the mean squared gain, beside which the square of a gain counts


class Wanted:
    """The regression of what a component's last projection has to give; tokens count beside the
    median token of the first batch.
    """

    def __init__(self, network: PreTrainedModel, layer: nn.Module, component: str) -> None:
        """component: "attention" or "mlp" of a decoder layer of the compressed network."""
        self.sums, self._times = Regression(), residual_multiplier(network)
        self._norm = norm_after(network, layer, component)
        self._median: Tensor | None = None

    @property
    def normed(self) -> bool:
        """Whether it is normed before it is added."""
        return self._norm is not None

    def add(
        self, x: Tensor, after: Tensor, before: Tensor, own: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Add a batch: inputs [b, t, in]; the dense stream after the component and the compressed
        one before it, [b, t, d]; where it is normed, what the dense projection gives, [b, t, d].
        What the projection should give, [b, t, d], and the weights of the tokens, [b, t].
        """
        wanted, squares = (after - before) / self._times, mean_squares(after)
        if self._norm is not None and own is not None:
            wanted = before_norm(self._norm, wanted, own)
            squares = squares * mean_squares(own)
        if self._median is None:
            self._median = squares.median()
        weights = token_weights(squares, self._median)
        self.sums.add(x, wanted, weights)
        return wanted, weights


def before_norm(norm: nn.Module, wanted: Tensor, own: Tensor) -> Tensor:
    """What to give an RMS norm so that it gives `wanted` [b, t, d], near `own` [b, t, d]: see
    above. In float32 at least.
    """
    own = at_least_float32(own)
    gain = norm(torch.ones_like(own[..., :1, :]))
    step = gain / (gain.square() + DAMPED * gain.square().mean()) * (wanted - norm(own))
    found: Tensor = own + mean_squares(own).sqrt().unsqueeze(-1) * step
    return found


def token_weights(squares: Tensor, median: Tensor) -> Tensor:
    """The weight of every token [b, t] by the mean square of its residual stream [b, t] after a
    component; median: of these.
    """
    least = torch.finfo(squares.dtype).tiny  # of a stream of zeros
    return (median.clamp_min(least) / squares.clamp_min(least)).clamp_max(LIGHT)


def mean_squares(stream: Tensor) -> Tensor:
    """Of every token [b, t] of a residual stream [b, t, d], in float32 at least."""
    return at_least_float32(stream).square().mean(-1)
