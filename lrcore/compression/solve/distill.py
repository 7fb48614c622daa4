"""Distillation of a compressed network: the last part of `refit: distilled`.

The refit approximates the dense residual stream, layer by layer. Afterwards all numbers of the
decoder layers are trained together for what the stream is used for, the predictions:

    min E KL(softmax(z) | softmax(z^)),

with z the logits of the dense and z^ those of the compressed network. The windows are drawn from
the calibration text, a new batch for each step: the calibration windows themselves are too few, and
layers that were fitted to them have a far lower divergence on them than on other text. Embeddings,
the final norm and the head are unchanged. Where the processor multiplies matrices in bfloat16 and
its rounding is small beside the divergence, products are in bfloat16 and all else in float32.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...evaluation.evaluate import batches
from ...models.architectures import decoder_layers, text_config
from ...models.load import LoadedModel
from ...recipes.recipe import Recipe
from ...system.cache import trim
from ...system.errors import InputError
from ...system.files import cache_folder, cache_key
from ...system.hardware import has_bfloat16_products
from ...system.progress import Progress
from ..calibration.calibrate import make_calibration_windows
from ..steps.healing.distillation import Descent, Parts, Stage, Terms, mean_divergence
from .refit import refit_key
from .trained_layer import assign, trainable

STEPS, STEP_TOKENS = 300, 2048
# The highest learning rate is a share of the root mean square of each tensor: the first of these,
# divided by the width of the stream, at which TRIAL steps lower the divergence. The best shares
# were 0.01 at a width of 64; at 576 0.001, and less for a model that has lost little.
RATES_TIMES_WIDTH = (0.64, 0.2, 0.06)
# Steps of a trial, and batches, of other windows, on which the divergence is measured
TRIAL, CHECKED = 30, 2
# Cost in tokens that run forward; a step also runs the dense model, and its gradients count twice.
TOKENS = 4 * (TRIAL + STEPS) * STEP_TOKENS
# Highest share of the rounding to bfloat16 in the divergence before the distillation
MAX_ROUNDING = 0.01
REVISION = 2  # part of `distillation_key`: increase it if a distillation yields other weights
REMEDY = "refit on, or dtype float32"
STAGE = Stage("distill", "Distillation", REMEDY)
TRIAL_STAGE = Stage("try learning rate", "Distillation", REMEDY)


def distillation_key() -> tuple[float | int, ...]:
    """Return the constants that the distillation depends on."""
    steps = STEPS, STEP_TOKENS, TRIAL, CHECKED
    return REVISION, *steps, *RATES_TIMES_WIDTH, MAX_ROUNDING


def distillation_windows(model: LoadedModel, recipe: Recipe) -> Tensor:
    """Return windows [CHECKED + steps, b, t] of a recipe's calibration text, about STEP_TOKENS per
    batch.

    Raises InputError as `make_calibration_windows` does.
    """
    batch, batches = max(1, STEP_TOKENS // recipe.seq_len), CHECKED + STEPS
    drawn = recipe.with_(samples=batches * batch, sampling="random", seed=recipe.seed + 1)
    return make_calibration_windows(model, drawn).tokens.view(batches, batch, -1)


def distill(
    network: PreTrainedModel,
    model: LoadedModel,
    windows: Tensor,
    key: str,
    progress: Progress,
) -> None:
    """Train the decoder layers of a compressed network towards the dense model, in place.

    windows [CHECKED + steps, b, t]: of tokens; the divergence is measured on the first batches, and
    each other one is a step. key: identifies the network before the distillation. An interrupted
    distillation resumes from the cache. Quantized and sparse numbers are not trained. The network
    is unchanged if its divergence does not fall. Raises InputError if a loss is not finite.
    """
    dtype = _dtype_of_products(network, model, windows[0])
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        trainable(decoder_layers(network), network.dtype) as parameters,
    ):
        if parameters:
            parts = _parts(network, model, windows, dtype)
            width = text_config(network).hidden_size
            task = _Task(parts, len(windows) - CHECKED, width, key)
            _Distillation(parameters, task, progress).run()


@dataclass(frozen=True)
class _Task:
    """What is distilled. parts(i): the pieces of batch i. width: of the stream."""

    parts: Parts
    steps: int
    width: int
    key: str


class _Distillation:
    """The training of parameters, from their present values."""

    def __init__(self, parameters: Sequence[nn.Parameter], task: _Task, progress: Progress) -> None:
        self.parameters, self.task, self.progress = parameters, task, progress
        self.start = [p.detach().clone() for p in parameters]
        self.sizes = [float(p.float().square().mean().sqrt()) for p in self.start]
        self.before = self._divergence()

    def run(self) -> None:
        """Train at the first rate whose trial succeeds, or at that of an interrupted run."""
        begun = [rate for rate in RATES_TIMES_WIDTH if _state_file(self.task.key, rate).is_file()]
        for rate in begun or RATES_TIMES_WIDTH:
            if begun or self._succeeds(rate):
                self._train(rate)
                return

    def _succeeds(self, rate: float) -> bool:
        """Return whether a trial lowers the divergence, and undo it."""
        with suppress(InputError):  # a loss that is not finite
            self._descend(Descent(self.parameters, self._rates(rate), TRIAL, stage=TRIAL_STAGE))
        is_lower = self._divergence() < self.before  # not if it is NaN
        assign(self.parameters, self.start)
        return is_lower

    def _train(self, rate: float) -> None:
        file = _state_file(self.task.key, rate)
        rates = self._rates(rate)
        self._descend(Descent(self.parameters, rates, self.task.steps, file, self.task.key, STAGE))
        if not self._divergence() < self.before:
            assign(self.parameters, self.start)
        file.unlink(missing_ok=True)
        trim()

    def _rates(self, rate: float) -> list[float]:
        """Return the highest learning rate of each parameter."""
        return [rate / self.task.width * size for size in self.sizes]

    def _descend(self, descent: Descent) -> None:
        descent.run(lambda step: self.task.parts(CHECKED + step), 1.0, self.progress)

    @torch.no_grad()
    def _divergence(self) -> float:
        """Return the divergence on the first batches."""
        pieces = [piece for batch in range(CHECKED) for piece in self.task.parts(batch)]
        return sum(share * float(compute()[1]) for share, compute in pieces) / CHECKED


def _state_file(key: str, rate: float) -> Path:
    """Return the file of the cache for the state of an interrupted distillation."""
    name = cache_key(key, *distillation_key(), *refit_key(), rate)
    return cache_folder() / "distillations" / f"{name}.safetensors"


def _dtype_of_products(
    network: PreTrainedModel, model: LoadedModel, tokens: Tensor
) -> torch.dtype | None:
    """Return the dtype for products of matrices, None for that of the network.

    tokens [b, t]. It is bfloat16 if that is faster on the device, and if its rounding changes the
    predictions of the dense network by at most MAX_ROUNDING of what separates them from those of
    the compressed network.
    """
    if network.dtype != torch.float32 or not has_bfloat16_products(network.device):
        return None
    piece = next(batches(model, tokens, len(tokens)))
    with torch.no_grad():
        exact = _logits(model.network, piece, None)
        rounded = mean_divergence(_logits(model.network, piece, torch.bfloat16), exact)
        divergence = mean_divergence(_logits(network, piece, None), exact)
    return torch.bfloat16 if rounded <= MAX_ROUNDING * divergence else None


def _parts(
    network: PreTrainedModel, model: LoadedModel, windows: Tensor, dtype: torch.dtype | None
) -> Parts:
    """Return a function from a batch to its pieces, small enough for the logits."""

    def compute(tokens: Tensor) -> Terms:
        with torch.no_grad():
            dense = _logits(model.network, tokens, dtype)
        divergence = mean_divergence(_logits(network, tokens, dtype), dense)
        return torch.zeros_like(divergence), divergence

    def parts(number: int) -> list[tuple[float, Callable[[], Terms]]]:
        batch = windows[number]
        pieces = batches(model, batch, len(batch))
        return [(len(piece) / len(batch), partial(compute, piece.clone())) for piece in pieces]

    return parts


def _logits(network: PreTrainedModel, tokens: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return the logits [b, t, vocab] of tokens [b, t], with products in a dtype if it is given."""
    with torch.autocast(network.device.type, dtype, enabled=dtype is not None):
        logits: Tensor = network(input_ids=tokens, use_cache=False).logits
    return logits
