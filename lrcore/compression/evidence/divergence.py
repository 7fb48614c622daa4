"""How far a changed network's predictions are from the dense one's: the mean Kullback-Leibler
divergence, in nats per token.

Its expectation is the rise of the loss where the text is as likely as the dense model says. Unlike
a rise measured on a sample, it is never negative, and what the sample's next tokens happen to be
does not enter it: of the same windows its standard error is ten times smaller.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div, nll_loss
from transformers import PreTrainedModel

from ...image_tokens import IGNORED, targets
from ...models.architectures import decoder_layers
from ...models.partial import starting_at
from ...models.stream import LayerStream
from ...precise import exact, exact_sum
from .losses import BATCH, sensible

KEPT = 2**28  # bytes of dense log-probabilities that are kept; of further windows, the head gives
# them again


class DensePredictions:
    """What the dense network predicts on tokens [windows, length], window by window.

    Log-probabilities of the first windows are kept, no more than `kept` bytes of them; of the
    others the last hidden states, of which the head makes them each time they are read.
    """

    @torch.inference_mode()
    def __init__(self, network: PreTrainedModel, tokens: Tensor, kept: int = KEPT) -> None:
        self.network, self.tokens = network, tokens.to(network.device)
        stream = LayerStream(network, tokens, BATCH)
        for index in range(len(decoder_layers(network))):
            stream.run(index)
        self._states = torch.cat(stream.hidden, -3)  # of several streams, too
        vocabulary = network.get_output_embeddings().weight.shape[0]
        count = kept // (4 * tokens.shape[1] * vocabulary)
        self._kept = [self._from_head(number) for number in range(min(count, len(tokens)))]

    def log_probabilities(self, number: int) -> Tensor:
        """Of every token of a window but the first, [length - 1, vocabulary], float32."""
        return self._kept[number] if number < len(self._kept) else self._from_head(number)

    @torch.inference_mode()
    def _from_head(self, number: int) -> Tensor:
        layers = len(decoder_layers(self.network))
        with starting_at(self.network, layers, self._states.narrow(-3, number, 1)):
            logits = self.network(input_ids=self.tokens[number, None], use_cache=False).logits
        predicted: Tensor = logits[0, :-1].float().log_softmax(-1)
        return predicted

    def mean_loss(self) -> float:
        """Mean loss of the dense network, nats/token; patches of images are not predicted."""
        after = targets(self.tokens)
        sums = [
            nll_loss(self.log_probabilities(number), own, reduction="sum")
            for number, own in enumerate(after)
        ]
        return float(exact_sum(torch.stack(sums))) / max(1, int((after != IGNORED).sum()))

    def losses(self) -> Tensor:
        """As `losses.window_losses` of the dense network, [windows], without another pass."""
        each = enumerate(targets(self.tokens))
        return sensible(
            torch.stack([_loss(self.log_probabilities(number), own) for number, own in each])
        ).cpu()

    @torch.inference_mode()
    def compared(self, network: PreTrainedModel) -> tuple[Tensor, Tensor]:
        """`divergences` of a whole network and `losses.window_losses`, [windows] each, of one pass
        over all windows.
        """
        divergences: list[Tensor] = []
        losses: list[Tensor] = []
        for tokens in self.tokens.split(BATCH):
            logits = network(input_ids=tokens, use_cache=False).logits[:, :-1]
            for own, after in zip(logits, targets(tokens), strict=True):
                changed = own.float().log_softmax(-1)
                divergences.append(self._divergence(changed, len(divergences)))
                losses.append(_loss(changed, after))
        return torch.stack(divergences).cpu(), sensible(torch.stack(losses)).cpu()

    def _divergence(self, changed: Tensor, number: int) -> Tensor:
        """Mean KL(dense || network) of a window, [], float64, by what the network predicts of it,
        [length - 1, vocabulary].
        """
        dense = self.log_probabilities(number)
        sums = kl_div(changed, dense, reduction="none", log_target=True).sum(-1)
        return sensible(exact(sums).mean()).clamp_min(0)

    @torch.inference_mode()
    def divergences(
        self,
        network: PreTrainedModel,
        index: int,
        hidden: list[Tensor],
        error: float = 0.0,
        shared: Sequence[Mapping[str, Any]] = (),
    ) -> Tensor:
        """Mean KL(dense || network) of every window, [windows], float64, nats/token, >= 0;
        `losses.WITHOUT_SENSE` where the network predicts NaN or infinity.

        index: the first layer that the networks do not share. hidden: its inputs [b, length, d],
        batch by batch, of the first windows or of all. error: further batches are left out once the
        standard error of the mean is at most this share of it. shared: of the same batches, see
        `LayerStream.shared`; nothing for the first layer.
        """
        result: list[Tensor] = []
        batches = zip(hidden, self.tokens.split(BATCH), strict=False)
        for number, (states, tokens) in enumerate(batches):
            given = shared[number] if shared else None
            if error and relative_error(result) <= error:
                break
            with starting_at(network, index, states, given):
                logits = network(input_ids=tokens, use_cache=False).logits[:, :-1]
            for own in logits:
                result.append(self._divergence(own.float().log_softmax(-1), len(result)))
        return torch.stack(result).cpu()


def _loss(predicted: Tensor, after: Tensor) -> Tensor:
    """Mean loss of a window, [], float64: log-probabilities [t, vocabulary], next tokens [t]."""
    each = exact(nll_loss(predicted, after, reduction="none"))
    return each.sum() / (after != IGNORED).sum().clamp_min(1).to(each.device)


def relative_error(values: list[Tensor]) -> float:
    """The standard error of the mean of some values >= 0, [] each, as a share of it; infinite of
    less than two.
    """
    if len(values) < 2:
        return float("inf")
    each = torch.stack(values)
    return float(each.std() / len(values) ** 0.5 / each.mean().clamp_min(1e-300))
