"""Healing: a compressed model trained for a short while against the dense model that it was made of
(CARE, section 3.5).

    L = L_CE + beta tau^2 L_KD, L_KD = mean over tokens of KL(softmax(z_dense / tau) | softmax(z /
    tau)) (eq. 6-8)

What is trained: of `care` the latents W^a and W^b of keys and values, of every other method all
matrices that compression has changed, with their biases; the rest is frozen. Where positions are
rotary, `rotary_channel` adds a decoupled channel of that width to every layer whose keys are
latents (W_Q^R small and random, W_K^R zero, so that the model starts as it was) and trains it as
well. The paper divides the scores by sqrt(d_h + d_r); here they keep the scale that the queries and
keys were trained with.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...checkpoints.checkpoint import load
from ...data import Windows, load_texts, make_windows
from ...errors import InputError, unknown
from ...evaluation.evaluate import batches, evaluate
from ...evaluation.protocols import EvaluationSettings
from ...models.architectures import decoder_layers
from ...models.layers import clone, read_layer
from ...models.load import LoadedModel
from ...progress import Progress, silent
from ...settings import check_settings, setting
from .distillation import Descent, Terms, terms
from .trainable import TRAINED, add_channel, set_free, trainable


@dataclass(frozen=True)
class Healing:
    """How to heal. Checked when it is made.

    data: text to train on, None for the recipe's. samples windows of seq_len tokens, drawn at
    random with seed; every step takes batch of them, all once before any twice. lr: the highest
    learning rate of AdamW; latents take ten times as much as whole matrices and identity blocks do.
    beta >= 0: weight of the divergence; temperature > 0: tau.
    rotary_channel: d_r, an even number, 0 for none. train: "latents", "factors" (what compression
    changed), "all" parameters, or "auto". test: text whose first test_samples windows are scored
    before and after; None for the test split of `data`. A file that is trained on is no test, and
    nothing is measured with test_samples 0.
    """

    data: str | None = setting(None, "Text to train on. Default: that of the calibration.")
    samples: int = setting(512, "Windows to train on, drawn at random.")
    seq_len: int = setting(256, "Tokens per window.")
    steps: int = setting(200, "Steps of AdamW.", low=1)
    batch: int = setting(8, "Windows per step.", low=1)
    lr: float = setting(3e-4, "Highest learning rate; latents take ten times as much.")
    beta: float = setting(
        1.0, "Weight of the divergence from the dense model; 0: cross-entropy alone."
    )
    temperature: float = setting(2.0, "tau of the divergence, which counts beta tau^2.")
    rotary_channel: int = setting(
        0, "Of care: width of a new rotary channel per head; 0: none.", low=0, metavar="D_R"
    )
    train: str = setting(
        "auto", "latents, factors (what compression changed), all, or auto (by the method)."
    )
    test: str | None = setting(None, "Text to measure on. Default: the test split of the data.")
    test_samples: int = setting(16, "Windows measured before and after; 0: none.", low=0)
    seed: int = setting(0, "Of windows, their order and the new channel.")

    def __post_init__(self) -> None:
        if self.train not in ("auto", *TRAINED):
            raise unknown("choice of what to train", str(self.train), ("auto", *TRAINED))
        check_settings(self)
        if self.rotary_channel % 2:
            raise InputError(
                f"rotary_channel = {self.rotary_channel}: rotary positions turn pairs. Give an "
                "even width, such as 8."
            )
        for name in ("lr", "temperature"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be a positive number, got {getattr(self, name)!r}.")
        if not self.beta >= 0:
            raise InputError(f"beta must be 0 (no teacher) or larger, got {self.beta!r}.")


def heal(
    model: LoadedModel,
    data: str | Healing | None = None,
    *,
    teacher: str | LoadedModel | None = None,
    state: str | Path | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> LoadedModel:
    """A compressed model with its factors trained; the one given is untouched.

    The arguments in `settings` are the fields of `Healing`.

    teacher: the dense model, or where it is now; None for the one its recipe names. state: a file
    that is written every 50 steps and from which the same healing goes on; the caller deletes it.
    On a CPU the same seed gives the same model, stopped in between or not.
    The report gains "healing": settings, protocol, what was trained, seconds, first and last loss,
    perplexity before and after, and L_CE and L_KD of every step. Ranks and recipe stay; the account
    counts the new channel.
    Raises InputError for a model that is not compressed, another teacher than its own, nothing to
    train, and a loss that is not finite.
    """
    asked = data if isinstance(data, Healing) else Healing(data, **settings)
    progress = progress or silent
    teacher = find_teacher(model, teacher)
    recipe = model.report["recipe"]
    asked = replace(
        asked, data=asked.data or recipe["data"], train=_choice(asked.train, recipe["method"])
    )
    model.check_length(asked.seq_len)
    windows = make_windows(
        load_texts(asked.data), model.tokenizer, asked.samples, asked.seq_len, "random", asked.seed
    )
    network = clone(model.network)
    if asked.rotary_channel:
        add_channel(network, asked.rotary_channel, asked.seed)
    parameters = set_free(network, trainable(network, teacher.network, asked.train))
    made = replace(model, name=f"{model.name} healed", network=network)
    measured = _tester(asked, windows, progress)
    before = measured(model)
    identity = json.dumps(
        [model.fingerprint, teacher.fingerprint, asdict(asked), windows.key, model.dtype]
    )
    key = hashlib.sha256(identity.encode()).hexdigest()
    descent = Descent(parameters, asked.lr, asked.steps, Path(state) if state else None, key)
    try:
        losses = descent.run(
            _parts(made, teacher, windows, asked), asked.beta * asked.temperature**2, progress
        )
    finally:
        network.requires_grad_(False)
    told = asdict(asked) | {
        "teacher": teacher.name,
        "protocol": windows.protocol,
        "trained_parameters": sum(parameter.numel() for parameter in parameters),
        "seconds": round(descent.seconds, 3),
        "test_protocol": before.get("protocol"),
        "perplexity_before": before.get("perplexity"),
        "perplexity_after": measured(made).get("perplexity"),
    }
    told |= _course(asked, losses)
    return replace(
        made,
        fingerprint=key,
        report=model.report | {"summary": account(model, made), "healing": told},
    )


def find_teacher(model: LoadedModel, given: str | LoadedModel | None = None) -> LoadedModel:
    """The dense model that a compressed one was made of, on its device and in its dtype.

    Raises InputError where it is gone or another.
    """
    report = model.report or {}
    if "recipe" not in report:
        raise InputError(
            f"'{model.name}' is no compressed model: no recipe came with it. Give the folder that "
            "`compress --out` wrote."
        )
    if model.offloaded:
        raise InputError(
            f"'{model.name}' waits on disk layer by layer, and training needs it in memory. Load "
            "it without offload."
        )
    base, found = report["recipe"]["model"], given
    if not isinstance(given, LoadedModel):
        try:
            found = load(
                given or base,
                None if given else report["recipe"].get("revision"),
                model.dtype,
                str(model.device),
            )
        except InputError as error:
            raise InputError(
                f"The dense model that '{model.name}' was made of, '{given or base}', cannot be "
                f"loaded as its teacher: {error} "
                "If it has moved, say where it is (--teacher)."
            ) from error
    if found.fingerprint != report["base_fingerprint"]:
        raise InputError(
            f"'{found.name}' is not the model that '{model.name}' was made of: its files have "
            "another fingerprint. "
            "They were changed or exchanged since; give the original as teacher (--teacher), or "
            "compress again."
        )
    return found


def _choice(train: str, method: str) -> str:
    return train if train != "auto" else "latents" if method == "care" else "factors"


def _parts(
    student: LoadedModel, teacher: LoadedModel, windows: Windows, asked: Healing
) -> Callable:
    """What a step computes: its windows, in pieces whose logits fit."""
    generator, count = torch.Generator().manual_seed(asked.seed), asked.steps * asked.batch
    rounds = -(-count // len(windows.tokens))
    order = torch.cat(
        [torch.randperm(len(windows.tokens), generator=generator) for _ in range(rounds)]
    )[:count].view(asked.steps, -1)

    def compute(part: Tensor) -> Terms:
        inputs, targets = part[:, :-1], part[:, 1:]
        with torch.no_grad():
            theirs = (
                teacher.network(input_ids=inputs, use_cache=False).logits if asked.beta else None
            )
        return terms(
            student.network(input_ids=inputs, use_cache=False).logits,
            theirs,
            targets,
            asked.temperature,
        )

    def parts(step: int) -> list[tuple[float, Callable[[], Terms]]]:
        pieces = batches(student, windows.tokens[order[step]], asked.batch)
        return [(len(piece) / asked.batch, partial(compute, piece)) for piece in pieces]

    return parts


def _tester(
    asked: Healing, windows: Windows, progress: Progress
) -> Callable[[LoadedModel], dict[str, Any]]:
    """What measures perplexity on text that is not trained on, as a mapping; nothing is in it
    where there is no such text.
    """
    data = asked.test or asked.data
    if (
        not asked.test_samples
        or load_texts(data, "test").fingerprint == windows.protocol["fingerprint"]
    ):
        return lambda model: {}
    test = EvaluationSettings(data, asked.test_samples, asked.seq_len)
    return lambda model: evaluate(model, test, batch=asked.batch, progress=progress).to_dict()


def _course(asked: Healing, losses: list[tuple[float, float]]) -> dict[str, Any]:
    """How the loss went, L of eq. 8 at the ends and its two parts at every step."""
    first, last = (
        entropy + asked.beta * asked.temperature**2 * divergence
        for entropy, divergence in (losses[0], losses[-1])
    )
    entropy, divergence = (
        [round(value, 6) for value in part] for part in zip(*losses, strict=True)
    )
    tokens = asked.steps * asked.batch * (asked.seq_len - 1)
    return {
        "tokens": tokens,
        "first_loss": first,
        "last_loss": last,
        "cross_entropy": entropy,
        "divergence": divergence,
    }


def account(model: LoadedModel, made: LoadedModel) -> dict[str, Any]:
    """The plan's account with what a new channel adds: its parameters, and its work per token as
    the plan counts that of latents.

    What the plan predicted of the perplexity no longer holds.
    """
    summary, length = dict(model.report["summary"]), model.report["recipe"]["seq_len"]
    summary["predicted_perplexity"] = None
    more = made.size.parameters - model.size.parameters
    if not more:
        return summary
    for name in ("parameters", "decoder_parameters"):
        summary[name] += more
    summary["megabytes"] += more * made.network.dtype.itemsize / 1e6
    for index in range(len(decoder_layers(made.network))):
        a = read_layer(made.network, index).attention
        if a.channel is not None:
            summary["flops_per_token"] += 2 * a.channel.parameters + 2 * length * (
                a.channel.k.numel() + 2 * a.n_q * a.channel.size
            )
    summary["removed_params"] -= more / summary["dense_decoder_parameters"]
    summary["removed_total"] -= more / summary["dense_parameters"]
    summary["achieved"] = summary[f"removed_{summary['budget']}"]
    return summary
