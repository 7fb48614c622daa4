"""Probes with products in bfloat16: divergences from the change of the states that the head reads.

The logits of most families are z = W h, with h the state after the final norm. Those of a changed
network differ by d = W (h^ - h), and

    KL(dense || changed) = log sum_v p_v exp(d_v - m),    m = sum_v p_v d_v,

with p the dense network's probabilities. A product in bfloat16 rounds d by a share of the
difference, not of the logits, so small divergences are as precise as large ones. With a large
vocabulary the product and the softmax of all logits would take half of a probe.

The layers run in bfloat16 as well. Their rounding is independent of the change, so it adds about as
much as it does to the dense network, which is measured once per layer and subtracted. A change
that is smaller than the rounding is measured in float32.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from ...layers.linalg import to_float64
from ...models.architectures import decoder_layers
from ...models.partial import starting_at
from ...system.hardware import has_bfloat16_products
from ..solve.factorize import Factorization
from .divergence import MAX_CACHED_BYTES, DensePredictions
from .losses import replace_non_finite

MIN_HEAD = 2**22  # weights of the head; products of a smaller one take little of a probe
# Least ratio of a divergence in bfloat16, before the subtraction, to that of the rounding alone. On
# SmolLM2-135M the least divergences then have errors of 4 %; the choice of windows causes 16 %.
MIN_RATIO = 2.0
CONVERTED = 2**16  # logits that are converted at once: they stay in the processor's cache
SAME_LOGITS = 1e-4  # largest difference of W h from the logits, as a share of the largest logit
SHORT = 8  # tokens on which they are compared
ROUNDED_KEY = ("bfloat16", MIN_RATIO, 1)  # increase the last number if the results change


def rounds_products(factors: Factorization) -> bool:
    """Return whether probes of a factorization may round products to bfloat16.

    They do for float32 on a processor with products in bfloat16, if the head is large.
    """
    calibration = factors.calibration
    return (
        factors.shape.head_parameters >= MIN_HEAD
        and calibration.protocol.get("dtype") == str(torch.float32)
        and calibration.device == "cpu"
        and has_bfloat16_products(torch.device("cpu"))
    )


@torch.inference_mode()
def multiplies_states(network: PreTrainedModel, tokens: Tensor) -> bool:
    """Return whether the logits of tokens [n, t] are W h + b; some families cap or scale them."""
    head, few = network.get_output_embeddings(), tokens[:1, :SHORT].to(network.device)
    if not isinstance(head, nn.Linear):
        return False
    logits = network(input_ids=few, use_cache=False).logits
    product = linear(_read_by_head(network, few), head.weight, head.bias)
    return torch.allclose(logits, product, atol=SAME_LOGITS * float(logits.abs().max()))


class HeadDifferences(DensePredictions):
    """Predictions of a dense network whose logits are W h, as in the module's description.

    The probabilities of the first windows are cached in bfloat16, at most `max_bytes` of them.
    """

    @torch.inference_mode()
    def __init__(
        self, network: PreTrainedModel, tokens: Tensor, max_bytes: int = MAX_CACHED_BYTES
    ) -> None:
        super().__init__(network, tokens, max_bytes=0)
        weight: Tensor = network.get_output_embeddings().weight
        self._weight = weight.bfloat16()
        windows = range(len(tokens))
        self._read = [self._dense_state(number) for number in windows]
        count = max_bytes // (2 * tokens.shape[1] * len(weight))
        self._probabilities = [self._softmax(number) for number in windows[:count]]
        self._rounding: dict[int, float] = {}

    def rounded_divergences(
        self,
        network: PreTrainedModel,
        index: int,
        hidden: list[Tensor],
        error: float = 0.0,
        shared: Sequence[Mapping[str, Any]] = (),
    ) -> Tensor:
        """Return `divergences` [windows] with layers in bfloat16, or float32 for a small change."""
        rounding = self._rounding_from(index, hidden, shared)
        with self._rounded():
            rounded = self.divergences(network, index, hidden, error, shared)
        if float(rounded.mean()) < MIN_RATIO * rounding:
            return self.divergences(network, index, hidden, error, shared)
        return (rounded - rounding).clamp_min(0)

    def _rounding_from(
        self, index: int, hidden: list[Tensor], shared: Sequence[Mapping[str, Any]]
    ) -> float:
        """Return the mean divergence of the dense network with layers in bfloat16 from `index` on.

        It is measured on the first batch.
        """
        if index not in self._rounding:
            with self._rounded():
                values = self.divergences(self.network, index, hidden[:1], shared=shared)
            self._rounding[index] = float(values.mean())
        return self._rounding[index]

    def _rounded(self) -> torch.autocast:
        return torch.autocast(self.network.device.type, torch.bfloat16)

    def _batch_divergences(
        self, network: PreTrainedModel, tokens: Tensor, first: int
    ) -> list[Tensor]:
        states = _read_by_head(network, tokens)
        return [self._state_divergence(state, first + i) for i, state in enumerate(states)]

    def _state_divergence(self, state: Tensor, number: int) -> Tensor:
        """Return the mean divergence of a window, [], float64.

        state [length, d]: the input of the head.
        """
        difference = (state - self._read[number])[:-1]
        changes = linear(difference.bfloat16(), self._weight)  # [length - 1, vocabulary]
        is_cached = number < len(self._probabilities)
        dense = self._probabilities[number] if is_cached else self._softmax(number)
        rows = max(1, CONVERTED // len(self._weight))
        parts = zip(changes.split(rows), dense.split(rows), strict=True)
        tokens = torch.cat([token_divergences(change, part) for change, part in parts])
        return replace_non_finite(to_float64(tokens).mean()).clamp_min(0)

    def _dense_state(self, number: int) -> Tensor:
        """Return the input of the dense network's head for a window, [length, d]."""
        layers, state = len(decoder_layers(self.network)), self._states.narrow(-3, number, 1)
        with starting_at(self.network, layers, state):
            return _read_by_head(self.network, self.tokens[number, None])[0]

    def _softmax(self, number: int) -> Tensor:
        """Return the probabilities of a window, [length - 1, vocabulary], bfloat16."""
        return self.log_probabilities(number).exp().bfloat16()


def token_divergences(changes: Tensor, dense: Tensor) -> Tensor:
    """Return KL(softmax(z) || softmax(z + changes)) of each token, [n], float32.

    changes [n, v]: of the logits. dense [n, v]: softmax(z), not necessarily of sum 1.
    """
    changes, dense = changes.float(), dense.float()
    total = dense.sum(-1)
    mean = (dense * changes).sum(-1) / total
    highest = changes.amax(-1).clamp_min(0)  # so that exp does not overflow
    raised = (changes - highest.unsqueeze(-1)).exp_().mul_(dense).sum(-1)
    return (raised / total).log() + highest - mean


class _Stop(Exception):
    """Ends a forward pass when the input of the head is available."""


def _read_by_head(network: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Return the input of the output head for tokens [b, t], [b, t, d]."""
    caught: list[Tensor] = []

    def catch(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        caught.append(args[0])
        raise _Stop

    head = network.get_output_embeddings()
    with head.register_forward_pre_hook(catch), suppress(_Stop):
        network(input_ids=tokens, use_cache=False)
    return caught[0]
