"""Distillation: training of a network towards another network, resumable after an interruption.

The loss of CARE, eq. 6-8. AdamW without weight decay (the weights start near their solution, and
zero is not near it), gradients clipped to norm 1, a linear warm-up and then half a cosine to zero.
A network in 16 bits is trained through float32 masters, and holds their rounded copies after every
step.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ....system.as_json import json_text
from ....system.errors import InputError
from ....system.files import draft_of
from ....system.tensor_files import write_tensors

CLIP = 1.0
WARM_UP = 100  # maximum number of steps, and at most a tenth of all
EVERY = 50  # steps between two states on disk
NUMBERS_AT_A_TIME = 2**22  # logits of a network that are in float32 at the same time
# Of the state on disk; increase it when the contents change. A state without a format has format 1.
FORMAT = 1

Terms = tuple[Tensor, Tensor]
Parts = Callable[[int], Sequence[tuple[float, Callable[[], Terms]]]]


class Diverged(InputError):
    """The loss of a training, or its gradient, is not finite."""


@dataclass(frozen=True)
class Stage:
    """The wording of a training. name: the stage in progress reports. title: starts the message
    if the training diverges. remedy: what to do then.
    """

    name: str
    title: str
    remedy: str


HEALING = Stage("heal", "Healing", "a smaller lr, or dtype float32")


def terms(student: Tensor, teacher: Tensor | None, targets: Tensor, temperature: float) -> Terms:
    """Return L_CE and L_KD of CARE, eq. 6-7, means over tokens, in nats.

    student, teacher [..., vocab]: logits; targets [...]: the next tokens.

    L_KD = mean KL(softmax(teacher / tau) | softmax(student / tau)). The cross-entropy is at
    temperature 1, as for perplexity. 16-bit logits are converted to float32. L_KD is zero if
    teacher is None.
    """
    student = (student if student.dtype.itemsize >= 4 else student.float()).flatten(0, -2)
    entropy = F.cross_entropy(student, targets.flatten())
    if teacher is None:
        return entropy, torch.zeros_like(entropy)
    return entropy, mean_divergence(student, teacher, temperature)


def mean_divergence(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the mean over tokens of KL(softmax(teacher / tau) | softmax(student / tau)), in nats.

    student, teacher [..., vocab]: logits. 16-bit logits are converted to float32. The gradient is
    that by the student.
    """
    divergence: Tensor = _MeanDivergence.apply(student, teacher, temperature)
    return divergence


class _MeanDivergence(torch.autograd.Function):
    """`mean_divergence`, a few tokens at a time: the gradient is all that is kept."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        ours, theirs = student.flatten(0, -2), teacher.flatten(0, -2)
        dtype = ours.dtype if ours.dtype.itemsize >= 4 else torch.float32
        rows = max(1, NUMBERS_AT_A_TIME // ours.shape[-1])
        gradient = torch.empty_like(ours) if ctx.needs_input_grad[0] else None
        total = ours.new_zeros((), dtype=dtype)
        for start in range(0, len(ours), rows):
            now = slice(start, start + rows)
            log_p, log_q = (
                F.log_softmax(logits[now].to(dtype) / temperature, dim=-1)
                for logits in (theirs, ours)
            )
            p = log_p.exp()
            total += log_p.sub_(log_q).mul_(p).sum()
            if gradient is not None:
                gradient[now] = log_q.exp_().sub_(p)
        if gradient is not None:
            ctx.gradient = gradient.view_as(student)
            ctx.scale = 1 / (temperature * len(ours))
        return total / len(ours)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, None, None]:
        return ctx.gradient * (scale * ctx.scale), None, None


def learning_rate_share(step: int, steps: int) -> float:
    """Return the learning rate of a step, counted from 0, as a share of the highest."""
    warm = max(1, min(WARM_UP, steps // 10))
    return (
        (step + 1) / warm
        if step < warm
        else 0.5 * (1 + math.cos(math.pi * (step - warm + 1) / (steps - warm + 1)))
    )


class Descent:
    """Steps of AdamW on parameters of a network.

    rates: the highest learning rate of each parameter. state: a file from which the same descent,
    identified by a key, is resumed.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        rates: Sequence[float],
        steps: int,
        state: Path | None = None,
        key: str = "",
        stage: Stage = HEALING,
    ) -> None:
        self.parameters, self.rates, self.steps = list(parameters), list(rates), steps
        self.state, self.key, self.stage = state, key, stage
        self.masters = [p if p.dtype.itemsize >= 4 else p.detach().float() for p in self.parameters]
        groups = [{"params": [p], "lr": lr} for p, lr in zip(self.masters, rates, strict=True)]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
        self.done, self.seconds = 0, 0.0
        self.losses: list[tuple[float, float]] = []
        if state is not None and state.is_file():
            with suppress(SafetensorError):  # a damaged file will be overwritten
                self._resume()

    def run(
        self, parts: Parts, weight: float, progress: Callable[[str, int, int], None]
    ) -> list[tuple[float, float]]:
        """Run the remaining steps; return L_CE and L_KD of all steps, including earlier ones.

        parts(step): the pieces of the step's batch, each with a share and a function for the
        terms. weight: beta tau^2 of eq. 8. Raises Diverged if a loss or gradient is not finite.
        """
        self._drop_gradients()  # of a descent that diverged
        for step in range(self.done, self.steps):
            progress(self.stage.name, step, self.steps)
            began = time.perf_counter()
            self.losses.append(self._step(step, parts(step), weight))
            self.done, self.seconds = step + 1, self.seconds + time.perf_counter() - began
            if self.state is not None and self.done % EVERY == 0 and self.done < self.steps:
                self._keep()
        progress(self.stage.name, self.steps, self.steps)
        return self.losses

    def _step(
        self, step: int, parts: Sequence[tuple[float, Callable[[], Terms]]], weight: float
    ) -> tuple[float, float]:
        entropy = divergence = 0.0
        for share, compute in parts:
            cross_entropy, kl = compute()
            (share * (cross_entropy + weight * kl)).backward()
            entropy += share * float(cross_entropy.detach())
            divergence += share * float(kl.detach())
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if master is not parameter and parameter.grad is not None:
                master.grad = parameter.grad.float()
        norm = float(nn.utils.clip_grad_norm_(self.masters, CLIP))
        if not math.isfinite(entropy + divergence + norm):
            raise Diverged(
                f"{self.stage.title} diverged at step {step + 1} of {self.steps}: the loss "
                f"({entropy:g} + {weight:g} * {divergence:g}) or its gradient ({norm:g}) is not "
                f"finite. Use {self.stage.remedy}."
            )
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * learning_rate_share(step, self.steps)
        self.optimizer.step()
        self._round()
        self._drop_gradients()
        return entropy, divergence

    def _drop_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def _round(self) -> None:
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if master is not parameter:
                parameter.copy_(master)

    def _keep(self) -> None:
        tensors = {f"{i}.value": master for i, master in enumerate(self.masters)}
        for i, master in enumerate(self.masters):
            tensors |= {
                f"{i}.{name}": value for name, value in self.optimizer.state[master].items()
            }
        metadata = {
            "format": str(FORMAT),
            "key": self.key,
            "done": str(self.done),
            "seconds": str(self.seconds),
            "losses": json_text(self.losses),
        }
        assert self.state is not None  # checked by the caller
        with draft_of(self.state) as draft:
            write_tensors(draft, tensors, metadata)

    @torch.no_grad()
    def _resume(self) -> None:
        """Restore the state, unless it belongs to a different descent or format."""
        with safe_open(self.state, "pt") as opened:
            metadata = opened.metadata() or {}
            stored = metadata.get("key"), metadata.get("format")
            if stored != (self.key, str(FORMAT)):
                return
            for name in opened.keys():  # noqa: SIM118 (not a dict)
                index, _, part = name.partition(".")
                master, tensor = self.masters[int(index)], opened.get_tensor(name)
                if part == "value":
                    master.copy_(tensor)
                else:
                    self.optimizer.state[master][part] = (
                        tensor if part == "step" else tensor.to(master.device)
                    )
        self._round()
        self.done, self.seconds = int(metadata["done"]), float(metadata["seconds"])
        self.losses = [tuple(pair) for pair in json.loads(metadata["losses"])]
