"""Distillation of a compressed network: the last part of `refit: distilled`, and, with fewer steps,
of the default refit after measured ranks.

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
from ...ranks.policies import find_policy
from ...recipes.recipe import Recipe
from ...system.cache import trim
from ...system.files import cache_folder, cache_key
from ...system.hardware import has_bfloat16_products
from ...system.progress import Progress
from ..calibration.calibrate import make_calibration_windows
from ..steps.healing.distillation import Descent, Diverged, Parts, Stage, Terms, mean_divergence
from .compress_layers import has_refit
from .refit import refit_key
from .trained_layer import assign, trainable

STEPS, STEP_TOKENS = 300, 2048
# The highest learning rate is a share of the root mean square of each tensor: the first of these,
# divided by the width of the stream, at which TRIAL steps lower the divergence, else the last. The
# best shares were 0.01 at a width of 64; at 576 0.001, and less for a model that has lost little.
RATES_TIMES_WIDTH = (0.64, 0.2, 0.06)
# Steps of a trial, and batches, of other windows, on which the divergence is measured
TRIAL, CHECKED = 30, 2
# Of a step, in passes forward; it also runs the dense model, and its gradients count twice.
COST = 4
# By default: tokens of a step; tokens of all steps for each token of the calibration; the share of
# the text that they read at most, so that the divergence is measured on other tokens; the highest
# and the lowest number of steps; the rates in the order in which they are tried, and the steps of
# a trial: a rate that is too high is seen at once; and the largest model, whose copies for the
# training fit into the memory of a laptop.
DEFAULT_STEP_TOKENS, DEFAULT_PASSES, SHARE_OF_TEXT = 1024, 4, 0.5
MOST_STEPS, FEWEST_STEPS = 192, 24
DEFAULT_RATES_TIMES_WIDTH, DEFAULT_TRIAL = (0.2, 0.06), 8
LEAST_DIVERGENCE = 0.01  # nats/token; a model that is closer to the dense model is left as it is
LARGEST = 500_000_000  # numbers
# Highest share of the rounding to bfloat16 in the divergence before the distillation
MAX_ROUNDING = 0.01
REVISION = 2  # part of `Schedule.key`: increase it if a distillation yields other weights
REMEDY = "refit on, or dtype float32"
STAGE = Stage("distill", "Distillation", REMEDY)
TRIAL_STAGE = Stage("try learning rate", "Distillation", REMEDY)


@dataclass(frozen=True)
class Schedule:
    """The length and the learning rates of a distillation.

    step_tokens: tokens of a step. rates: the highest learning rates, as a share of the root mean
    square of a tensor times the width of the stream, in the order in which they are tried. trial:
    steps of the trial of a rate; the last rate has none. least: a model with a smaller divergence,
    in nats/token, is not distilled.
    """

    steps: int
    step_tokens: int
    rates: tuple[float, ...]
    trial: int
    least: float = 0.0

    @property
    def tokens(self) -> int:
        """The cost, in tokens that run forward through the network."""
        return COST * (self.trial + self.steps) * self.step_tokens

    @property
    def key(self) -> tuple[float | int, ...]:
        """The constants that the distillation depends on."""
        steps = self.steps, self.step_tokens, self.trial, CHECKED
        least = (self.least,) if self.least else ()
        return REVISION, *steps, *self.rates, MAX_ROUNDING, *least


def schedule_of(
    recipe: Recipe, model: LoadedModel, text_tokens: int | None = None
) -> Schedule | None:
    """Return how a recipe distills a model, None if it does not.

    It does by setting. It also does, with fewer steps, if the refit is the method's default and the
    policy measures its ranks, which takes as long: for a model in memory that is not too large, and
    with enough tokens in the calibration windows and in the text. Quantized numbers cannot be
    trained. text_tokens: of the calibration text; None if unknown, for a long text.
    """
    if recipe.distills:
        return full_schedule()
    by_default = recipe.refit == "auto" and find_policy(recipe.policy).distills
    if not by_default or recipe.budget == "bytes" or not has_refit(recipe, model.network):
        return None
    tokens = DEFAULT_PASSES * recipe.samples * recipe.seq_len
    if text_tokens is not None:
        tokens = min(tokens, int(SHARE_OF_TEXT * text_tokens))
    steps = min(tokens // DEFAULT_STEP_TOKENS, MOST_STEPS)
    if steps < FEWEST_STEPS or model.offloaded or model.size.parameters > LARGEST:
        return None
    rates = DEFAULT_RATES_TIMES_WIDTH
    return Schedule(steps, DEFAULT_STEP_TOKENS, rates, DEFAULT_TRIAL, LEAST_DIVERGENCE)


def full_schedule() -> Schedule:
    """Return the schedule of `refit: distilled`."""
    return Schedule(STEPS, STEP_TOKENS, RATES_TIMES_WIDTH, TRIAL)


def before_distillation(recipe: Recipe, model: LoadedModel) -> Recipe:
    """Return the recipe of the same model before a distillation by default."""
    if recipe.distills or schedule_of(recipe, model) is None:
        return recipe
    return recipe.with_(refit="on")


def distillation_windows(model: LoadedModel, recipe: Recipe, schedule: Schedule) -> Tensor:
    """Return windows [CHECKED + steps, b, t] of a recipe's calibration text, about as many tokens
    per batch as the schedule has per step.

    Raises InputError as `make_calibration_windows` does.
    """
    batch = max(1, schedule.step_tokens // recipe.seq_len)
    batches = CHECKED + schedule.steps
    drawn = recipe.with_(samples=batches * batch, sampling="random", seed=recipe.seed + 1)
    return make_calibration_windows(model, drawn).tokens.view(batches, batch, -1)


def distill(
    network: PreTrainedModel,
    model: LoadedModel,
    windows: Tensor,
    schedule: Schedule,
    key: str,
    progress: Progress,
) -> int:
    """Train the decoder layers of a compressed network towards the dense model, in place, and
    return the number of steps; 0 if its divergence did not fall, and the network is unchanged.

    windows [CHECKED + steps, b, t]: of tokens; the divergence is measured on the first batches, and
    each other one is a step. schedule: see `schedule_of`. key: identifies the network before the
    distillation. An interrupted distillation resumes from the cache. Quantized and sparse numbers
    are not trained. Raises InputError if the cache cannot be written.
    """
    dtype = _dtype_of_products(network, model, windows[0])
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        trainable(decoder_layers(network), network.dtype) as parameters,
    ):
        if not parameters:
            return 0
        parts = _parts(network, model, windows, dtype)
        task = _Task(parts, schedule, text_config(network).hidden_size, key)
        return schedule.steps * _Distillation(parameters, task, progress).run()


@dataclass(frozen=True)
class _Task:
    """What is distilled. parts(i): the pieces of batch i. width: of the stream."""

    parts: Parts
    schedule: Schedule
    width: int
    key: str

    def state_file(self, rate: float) -> Path:
        """Return the file of the cache for the state of an interrupted distillation."""
        name = cache_key(self.key, *self.schedule.key, *refit_key(), rate)
        return cache_folder() / "distillations" / f"{name}.safetensors"


class _Distillation:
    """The training of parameters, from their present values."""

    def __init__(self, parameters: Sequence[nn.Parameter], task: _Task, progress: Progress) -> None:
        self.parameters, self.task, self.progress = parameters, task, progress
        self.start = [p.detach().clone() for p in parameters]
        self.sizes = [float(p.float().square().mean().sqrt()) for p in self.start]
        self.before = self._divergence()

    def run(self) -> bool:
        """Train at the first rate whose trial succeeds, else at the last, or at that of an
        interrupted run, unless the divergence is small already, and return whether it fell.
        """
        if self.before < self.task.schedule.least:
            return False
        *tried, last = self.task.schedule.rates
        begun = [rate for rate in (*tried, last) if self.task.state_file(rate).is_file()]
        rates = begun or (rate for rate in tried if self._succeeds(rate))
        return self._train(next(iter(rates), last))

    def _succeeds(self, rate: float) -> bool:
        """Return whether a trial lowers the divergence, and undo it."""
        steps = self.task.schedule.trial
        with suppress(Diverged):
            self._descend(Descent(self.parameters, self._rates(rate), steps, stage=TRIAL_STAGE))
        is_lower = self._divergence() < self.before  # not if it is NaN
        assign(self.parameters, self.start)
        return is_lower

    def _train(self, rate: float) -> bool:
        """Train at a rate, undo it if the divergence did not fall, and return whether it did."""
        file, steps = self.task.state_file(rate), self.task.schedule.steps
        rates = self._rates(rate)
        with suppress(Diverged):
            self._descend(Descent(self.parameters, rates, steps, file, self.task.key, STAGE))
        is_lower = self._divergence() < self.before  # not if it is NaN
        if not is_lower:
            assign(self.parameters, self.start)
        file.unlink(missing_ok=True)
        trim()
        return is_lower

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
