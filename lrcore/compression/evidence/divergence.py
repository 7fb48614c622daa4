"""Divergence of a changed network's predictions from the dense network's.

The mean Kullback-Leibler divergence, in nats per token. The expectation is the increase of the loss
on text that follows the dense model's distribution. Unlike an increase measured on a sample, it is
never negative, and it does not depend on the next tokens of the sample: on the same windows its
standard error is ten times smaller.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div, nll_loss
from transformers import PreTrainedModel

from ...layers.image_tokens import IGNORED, targets
from ...layers.linalg import sum_float64, to_float64
from ...models.architectures import decoder_layers
from ...models.partial import starting_at
from ...models.stream import LayerStream
from .losses import BATCH, replace_non_finite

# Bytes of dense log-probabilities in memory; those of further windows are recomputed by the head.
MAX_CACHED_BYTES = 2**28


class DensePredictions:
    """The dense network's predictions on tokens [windows, length], window by window.

    The log-probabilities of the first windows are cached, at most `max_bytes` of them. For further
    windows the last hidden states are cached, and the head is applied on each access.
    """

    @torch.inference_mode()
    def __init__(
        self, network: PreTrainedModel, tokens: Tensor, max_bytes: int = MAX_CACHED_BYTES
    ) -> None:
        self.network, self.tokens = network, tokens.to(network.device)
        stream = LayerStream(network, tokens, BATCH)
        for index in range(len(decoder_layers(network))):
            stream.run(index)
        self._states = torch.cat(stream.hidden, -3)  # also of models with several streams
        vocabulary = network.get_output_embeddings().weight.shape[0]
        count = max_bytes // (4 * tokens.shape[1] * vocabulary)
        self._cached = [self._from_head(number) for number in range(min(count, len(tokens)))]

    def log_probabilities(self, number: int) -> Tensor:
        """Return the log-probabilities of a window, [length - 1, vocabulary], float32."""
        return self._cached[number] if number < len(self._cached) else self._from_head(number)

    @torch.inference_mode()
    def _from_head(self, number: int) -> Tensor:
        layers = len(decoder_layers(self.network))
        with starting_at(self.network, layers, self._states.narrow(-3, number, 1)):
            logits = self.network(input_ids=self.tokens[number, None], use_cache=False).logits
        predicted: Tensor = logits[0, :-1].float().log_softmax(-1)
        return predicted

    def mean_loss(self) -> float:
        """Return the mean loss of the dense network, nats/token, without patches of images."""
        next_tokens = targets(self.tokens)
        sums = [
            nll_loss(self.log_probabilities(number), window_targets, reduction="sum")
            for number, window_targets in enumerate(next_tokens)
        ]
        return float(sum_float64(torch.stack(sums))) / max(1, int((next_tokens != IGNORED).sum()))

    def losses(self) -> Tensor:
        """Return `losses.window_losses` of the dense network, [windows], without another pass."""
        losses = [
            _loss(self.log_probabilities(number), window_targets)
            for number, window_targets in enumerate(targets(self.tokens))
        ]
        return replace_non_finite(torch.stack(losses)).cpu()

    @torch.inference_mode()
    def compared(self, network: PreTrainedModel) -> tuple[Tensor, Tensor]:
        """Return `divergences` and `losses.window_losses` of a complete network, [windows] each.

        Both come from a pass over all windows.
        """
        divergences: list[Tensor] = []
        losses: list[Tensor] = []
        for tokens in self.tokens.split(BATCH):
            logits = network(input_ids=tokens, use_cache=False).logits[:, :-1]
            for window_logits, window_targets in zip(logits, targets(tokens), strict=True):
                changed = window_logits.float().log_softmax(-1)
                divergences.append(self._divergence(changed, len(divergences)))
                losses.append(_loss(changed, window_targets))
        return torch.stack(divergences).cpu(), replace_non_finite(torch.stack(losses)).cpu()

    def _divergence(self, changed: Tensor, number: int) -> Tensor:
        """Return the mean KL(dense || network) of a window, [], float64.

        changed: the network's log-probabilities of the window, [length - 1, vocabulary].
        """
        dense = self.log_probabilities(number)
        sums = kl_div(changed, dense, reduction="none", log_target=True).sum(-1)
        return replace_non_finite(to_float64(sums).mean()).clamp_min(0)

    @torch.inference_mode()
    def divergences(
        self,
        network: PreTrainedModel,
        index: int,
        hidden: list[Tensor],
        error: float = 0.0,
        shared: Sequence[Mapping[str, Any]] = (),
    ) -> Tensor:
        """Return the mean KL(dense || network) of each window, [windows], float64, >= 0.

        In nats/token; `losses.NON_FINITE_LOSS` if the network predicts NaN or infinity.

        index: the first layer that the networks do not share. hidden: the inputs [b, length, d], in
        batches of the first windows or of all windows. error: stop before the next batch if the
        standard error is at most this share of the mean. shared: `LayerStream.shared` of the same
        batches; empty for the first layer.
        """
        result: list[Tensor] = []
        batches = zip(hidden, self.tokens.split(BATCH), strict=False)
        for number, (states, tokens) in enumerate(batches):
            if error and relative_error(result) <= error:
                break
            with starting_at(network, index, states, shared[number] if shared else None):
                result += self._batch_divergences(network, tokens, len(result))
        return torch.stack(result).cpu()

    def _batch_divergences(
        self, network: PreTrainedModel, tokens: Tensor, first: int
    ) -> list[Tensor]:
        """Return the mean KL(dense || network) of each window of a batch, [], float64 each.

        tokens [b, length]: the windows from number `first` on.
        """
        logits = network(input_ids=tokens, use_cache=False).logits[:, :-1]
        return [
            self._divergence(window_logits.float().log_softmax(-1), first + i)
            for i, window_logits in enumerate(logits)
        ]


def _loss(predicted: Tensor, next_tokens: Tensor) -> Tensor:
    """Return the mean loss of a window, [], float64.

    predicted: log-probabilities [t, vocabulary]; after: next tokens [t].
    """
    token_losses = to_float64(nll_loss(predicted, next_tokens, reduction="none"))
    return token_losses.sum() / (next_tokens != IGNORED).sum().clamp_min(1).to(token_losses.device)


def relative_error(values: list[Tensor]) -> float:
    """Return the standard error of the mean of values >= 0, [] each, relative to the mean.

    Infinite for fewer than two values.
    """
    if len(values) < 2:
        return float("inf")
    stacked = torch.stack(values)
    return float(stacked.std() / len(values) ** 0.5 / stacked.mean().clamp_min(1e-300))
