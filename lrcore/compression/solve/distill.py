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
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...evaluation.evaluate import batches
from ...models.architectures import decoder_layers, text_config
from ...models.load import LoadedModel
from ...recipes.recipe import Recipe
from ...system.cache import trim
from ...system.files import cache_folder, cache_key
from ...system.hardware import has_bfloat16_products
from ...system.progress import Progress
from ..calibration.calibrate import make_calibration_windows
from ..steps.healing.distillation import Descent, Stage, Terms, mean_divergence
from .refit import refit_key
from .trained_layer import trainable

STEPS, STEP_TOKENS = 300, 2048
# Highest learning rate: this divided by the width of the stream is the share of the root mean
# square of each tensor. The best shares were 0.01 at a width of 64 and 0.001 at 576.
RATE_TIMES_WIDTH = 0.64
# Cost in tokens that run forward; a step also runs the dense model, and its gradients count twice.
TOKENS = 4 * STEPS * STEP_TOKENS
# Highest share of the rounding to bfloat16 in the divergence before the distillation
MAX_ROUNDING = 0.01
REVISION = 2  # part of `distillation_key`: increase it if a distillation yields other weights
STAGE = Stage("distill", "Distillation", "refit on, or dtype float32")


def distillation_key() -> tuple[float | int, ...]:
    """Return the constants that the distillation depends on."""
    return REVISION, STEPS, STEP_TOKENS, RATE_TIMES_WIDTH, MAX_ROUNDING


def distillation_windows(model: LoadedModel, recipe: Recipe) -> Tensor:
    """Return windows [steps, b, t] of a recipe's calibration text, about STEP_TOKENS per step.

    Raises InputError as `make_calibration_windows` does.
    """
    batch = max(1, STEP_TOKENS // recipe.seq_len)
    drawn = recipe.with_(samples=STEPS * batch, sampling="random", seed=recipe.seed + 1)
    return make_calibration_windows(model, drawn).tokens.view(STEPS, batch, -1)


def distill(
    network: PreTrainedModel,
    model: LoadedModel,
    windows: Tensor,
    key: str,
    progress: Progress,
) -> None:
    """Train the decoder layers of a compressed network towards the dense model, in place.

    windows [steps, b, t]: of tokens, a batch per step. key: identifies the network before the
    distillation. An interrupted distillation resumes from the cache. Quantized and sparse numbers
    are not trained. Raises InputError if a loss is not finite.
    """
    file = _state_file(key)
    dtype = _dtype_of_products(network, model, windows[0])
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        trainable(decoder_layers(network), network.dtype) as parameters,
    ):
        if not parameters:
            return
        share = RATE_TIMES_WIDTH / text_config(network).hidden_size
        rates = [share * float(p.detach().float().square().mean().sqrt()) for p in parameters]
        descent = Descent(parameters, rates, len(windows), file, key, STAGE)
        descent.run(_parts(network, model, windows, dtype), 1.0, progress)
    file.unlink(missing_ok=True)
    trim()


def _state_file(key: str) -> Path:
    """Return the file of the cache for the state of an interrupted distillation."""
    name = cache_key(key, *distillation_key(), *refit_key())
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
) -> Callable[[int], Sequence[tuple[float, Callable[[], Terms]]]]:
    """Return a function from a step to the pieces of its batch, small enough for the logits."""

    def compute(tokens: Tensor) -> Terms:
        with torch.no_grad():
            dense = _logits(model.network, tokens, dtype)
        divergence = mean_divergence(_logits(network, tokens, dtype), dense)
        return torch.zeros_like(divergence), divergence

    def parts(step: int) -> list[tuple[float, Callable[[], Terms]]]:
        batch = windows[step]
        pieces = batches(model, batch, len(batch))
        return [(len(piece) / len(batch), partial(compute, piece.clone())) for piece in pieces]

    return parts


def _logits(network: PreTrainedModel, tokens: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return the logits [b, t, vocab] of tokens [b, t], with products in a dtype if it is given."""
    with torch.autocast(network.device.type, dtype, enabled=dtype is not None):
        logits: Tensor = network(input_ids=tokens, use_cache=False).logits
    return logits
