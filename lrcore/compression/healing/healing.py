"""Healing: a model made smaller, trained for a short while against the dense model that it was made
of (CARE, section 3.5).

    L = L_CE + beta tau^2 L_KD, L_KD = mean over tokens of KL(softmax(z_dense / tau) | softmax(z /
    tau)) (eq. 6-8)

What is trained: of `care` the latents W^a and W^b of keys and values, of every other method all
matrices that compression has changed, with their biases, and of a model that only lacks layers all
parameters; the rest is frozen. With "lora" low-rank adapters are trained in their place and merged,
see `lora`. Quantised matrices are trained through their rounding, see `straight_through`. Where
positions are rotary, `rotary_channel` adds a decoupled channel of that width to every layer whose
keys are latents (W_Q^R small and random, W_K^R zero, so that the model starts as it was) and trains
it as well. The paper divides the scores by sqrt(d_h + d_r); here they keep the scale that the
queries and keys were trained with.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...account import SizeAndCost
from ...as_json import json_text
from ...checkpoints.checkpoint import load
from ...data import Windows, apart_from, load_texts, make_windows, overlapping
from ...errors import InputError, Shortage, quoted
from ...evaluation.evaluate import batches, evaluate
from ...evaluation.settings import EvaluationSettings
from ...history import Healed, Quantised, Shortened, Step, last_step
from ...may_follow import check_may_follow, since_compressed
from ...models.architectures import decoder_layers
from ...models.counting import count_flops
from ...models.layers import clone
from ...models.load import LoadedModel
from ...progress import Progress, silent
from ...recipe import Recipe
from .distillation import Descent, Terms, terms
from .lora import add_adapters, merge_adapters
from .settings import LORA, Healing
from .straight_through import let_through, round_again
from .trainable import Dense, add_channel, layers_left, set_free, trainable


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
    teacher: the dense model, or where it is now; None for the one its recipe names. Without data it
    is trained on the text that it was calibrated on. state: a file that is written every 50 steps
    and from which the same healing goes on; the caller deletes it.
    On a CPU the same seed gives the same model, stopped in between or not.
    The history gains `Healed`: settings, protocol, what was trained, seconds, first and last loss,
    perplexity before and after, and L_CE and L_KD of every step. The account counts the new
    channel.
    Raises InputError for a model that nothing was done to, another teacher than its own, nothing to
    train, or to train on, and a loss that is not finite.
    """
    chosen = data if isinstance(data, Healing) else Healing(data, **settings)
    progress = progress or silent
    teacher, text = find_teacher(model, teacher), chosen.data or _text_of(model)
    chosen = replace(chosen, data=text, train=_choice(chosen.train, model))
    model.check_length(chosen.seq_len)
    texts = load_texts(text)
    windows = make_windows(
        texts, model.tokenizer, chosen.samples, chosen.seq_len, "random", chosen.seed
    )
    network = clone(model.network)
    parameters = _free(network, teacher.network, chosen, model.history)
    made = replace(model, name=f"{model.name} healed", network=network)
    score = _scorer(chosen, windows, progress)
    before = score(model)
    key = _key(model, teacher, chosen, windows)
    descent = Descent(parameters, chosen.lr, chosen.steps, Path(state) if state else None, key)
    try:
        losses = descent.run(
            _parts(made, teacher, windows, chosen), chosen.beta * chosen.temperature**2, progress
        )
    finally:
        network.requires_grad_(False)
        merge_adapters(network, chosen.train)
        round_again(network)
    step = Healed(
        **asdict(chosen) | _course(chosen, losses),
        teacher=teacher.name,
        protocol=windows.protocol,
        trained_parameters=sum(parameter.numel() for parameter in parameters),
        seconds=round(descent.seconds, 3),
        test_protocol=before.get("protocol"),
        perplexity_before=before.get("perplexity"),
        perplexity_after=score(made).get("perplexity"),
    )
    history, account = (*model.history, step), _account(model, made)
    return replace(made, fingerprint=key, history=history, account=account)


def _free(
    network: PreTrainedModel, dense: PreTrainedModel, chosen: Healing, history: Sequence[Step]
) -> list[nn.Parameter]:
    """What is trained, as parameters of this network alone: of quantised matrices their numbers; a
    rotary channel is added where one is asked for.
    """
    since = since_compressed(history)  # of the model that the teacher is
    let_through(network, own_grids=last_step(since, Quantised) is not None)
    left = layers_left(since, len(decoder_layers(dense)))
    if chosen.rotary_channel:
        add_channel(network, chosen.rotary_channel, chosen.seed)
    if chosen.train in LORA:
        return add_adapters(network, chosen.train, chosen.lora_rank, chosen.lora_alpha, chosen.seed)
    return set_free(network, trainable(network, Dense(dense, left), chosen.train))


def _key(model: LoadedModel, teacher: LoadedModel, chosen: Healing, windows: Windows) -> str:
    """What a healing is known by: the same one gives the same numbers, wherever its texts lie."""
    said = {name: one for name, one in asdict(chosen).items() if name not in ("data", "test")}
    identity = json_text([model.fingerprint, teacher.fingerprint, said, windows.key, model.dtype])
    return hashlib.sha256(identity.encode()).hexdigest()


def find_teacher(model: LoadedModel, given: str | LoadedModel | None = None) -> LoadedModel:
    """The dense model that a compressed one was made of, on its device and in its dtype.

    Raises InputError where it is gone or another, and for a model that cannot be healed.
    """
    check_may_follow(Healed, model.history, model.name)
    if model.offloaded:
        raise InputError(
            f"'{model.name}' is offloaded layer by layer, and training needs it in memory. Load "
            "it without offload."
        )
    recipe, dense = model.recipe, model.base
    assert dense is not None  # a model that something was done to has one
    if isinstance(given, LoadedModel):
        teacher = given
    else:
        base, revision = (recipe.model, recipe.revision) if recipe else (dense.name, None)
        base, revision = (base, revision) if given is None else (given, None)
        try:
            teacher = load(base, revision, model.dtype, str(model.device))
        except Shortage:
            raise
        except InputError as error:
            named = quoted(str(given or base))
            raise InputError(
                f"The dense model that '{model.name}' was made of, {named}, cannot be loaded as "
                f"its teacher: {error} "
                "If it has moved, say where it is (--teacher)."
            ) from error
    if teacher.fingerprint != dense.fingerprint:
        raise InputError(
            f"'{teacher.name}' is not the model that '{model.name}' was made of: its files have "
            "another fingerprint. "
            "They were changed or exchanged since; give the original as teacher (--teacher), or "
            "compress again."
        )
    return teacher


def _text_of(model: LoadedModel) -> str:
    """The text that a model was compressed by, or last calibrated on. Raises InputError where it
    read none.
    """
    if model.recipe is not None:
        return model.recipe.data
    read = [getattr(step, "calibration", {}).get("source") for step in model.history]
    named = [data for data in read if data]
    if not named:
        raise InputError(
            f"'{model.name}' was made without text. Name one to train it on (--data), such as "
            "stories."
        )
    return str(named[-1])


def _choice(train: str, model: LoadedModel) -> str:
    """What is trained of a model, where that is left to its history."""
    if train != "auto":
        return train
    if all(isinstance(step, Shortened | Healed) for step in model.history):
        return "all"  # no number that is left was changed
    latents = model.recipe is not None and model.recipe.method == "care"
    return "latents" if latents else "factors"


def _parts(
    student: LoadedModel, teacher: LoadedModel, windows: Windows, chosen: Healing
) -> Callable:
    """What a step computes: its windows, in pieces whose logits fit."""
    generator, count = torch.Generator().manual_seed(chosen.seed), chosen.steps * chosen.batch
    rounds = -(-count // len(windows.tokens))
    order = torch.cat(
        [torch.randperm(len(windows.tokens), generator=generator) for _ in range(rounds)]
    )[:count].view(chosen.steps, -1)

    def compute(part: Tensor) -> Terms:
        inputs, targets = part[:, :-1], part[:, 1:]
        with torch.no_grad():
            theirs = (
                teacher.network(input_ids=inputs, use_cache=False).logits if chosen.beta else None
            )
        return terms(
            student.network(input_ids=inputs, use_cache=False).logits,
            theirs,
            targets,
            chosen.temperature,
        )

    def parts(step: int) -> list[tuple[float, Callable[[], Terms]]]:
        pieces = batches(student, windows.tokens[order[step]], chosen.batch)
        return [(len(piece) / chosen.batch, partial(compute, piece)) for piece in pieces]

    return parts


def _scorer(
    chosen: Healing, windows: Windows, progress: Progress
) -> Callable[[LoadedModel], dict[str, Any]]:
    """What evaluates a model on text that is not trained on; it gives an empty mapping where there
    is no such text.
    """
    if not chosen.test_samples:
        return lambda model: {}
    trained_on = {windows.protocol["fingerprint"]}
    texts = apart_from(load_texts(chosen.test or chosen.data or "", "test"), trained_on)
    if overlapping(texts) & trained_on:
        return lambda model: {}
    test = EvaluationSettings(texts.source, chosen.test_samples, chosen.seq_len)
    return lambda model: evaluate(model, test, batch=chosen.batch, progress=progress).to_dict()


def _course(chosen: Healing, losses: list[tuple[float, float]]) -> dict[str, Any]:
    """How the loss went, L of eq. 8 at the ends and its two parts at every step; and None for
    settings that were not read.
    """
    first, last = (
        entropy + chosen.beta * chosen.temperature**2 * divergence
        for entropy, divergence in (losses[0], losses[-1])
    )
    entropy, divergence = (
        [round(value, 6) for value in part] for part in zip(*losses, strict=True)
    )
    tokens = chosen.steps * chosen.batch * (chosen.seq_len - 1)
    adapters = {} if chosen.train in LORA else {"lora_rank": None, "lora_alpha": None}
    return adapters | {
        "tokens": tokens,
        "first_loss": first,
        "last_loss": last,
        "cross_entropy": tuple(entropy),
        "divergence": tuple(divergence),
    }


def _account(model: LoadedModel, made: LoadedModel) -> SizeAndCost:
    """The account with what a new channel adds: its parameters, its bytes and its work.

    What the plan predicted of the perplexity no longer holds.
    """
    assert model.account is not None  # a model that something was done to has one
    account = model.account.without_prediction()
    added = made.size.parameters - model.size.parameters
    if not added:
        return account
    own = replace(
        account.model,
        parameters=account.model.parameters + added,
        decoder_parameters=account.model.decoder_parameters + added,
        bytes=account.model.bytes + added * made.network.dtype.itemsize,
        flops_per_token=count_flops(made.network, (model.recipe or Recipe()).seq_len),
    )
    return replace(account, model=own)
