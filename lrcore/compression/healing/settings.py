"""The settings of healing."""

import math
from dataclasses import dataclass

from ...errors import InputError, shown, unknown
from ...settings import check_settings, setting

LORA = ("lora", "lora_mlp")
TRAINED = ("latents", "factors", "all", *LORA)


@dataclass(frozen=True)
class Healing:
    """How to heal. Raises InputError where it is made with a value out of its range.

    data: text to train on, None for the recipe's. samples windows of seq_len tokens, drawn at
    random with seed; every step takes batch of them, all once before any twice. lr: the highest
    learning rate of AdamW; latents take ten times as much as whole matrices and identity blocks do.
    beta >= 0: weight of the divergence; temperature > 0: tau.
    rotary_channel: d_r, an even number, 0 for none. train: "latents", "factors" (what compression
    changed), "all" parameters, "lora" or "lora_mlp" (adapters of lora_rank on every projection or
    those of the MLPs, merged at the end, scaled by lora_alpha / lora_rank), or "auto".

    test: text whose first test_samples windows are scored
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
        "auto",
        "latents, factors (what compression changed), all, auto (by the method), or merged "
        "adapters: lora, lora_mlp.",
    )
    lora_rank: int = setting(8, "Rank of the adapters.", low=1)
    lora_alpha: int = setting(16, "Adapters count alpha / rank.", low=1)
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
        for name in ("data", "test"):
            text = getattr(self, name)
            if text is not None and not (isinstance(text, str) and text.strip()):
                raise InputError(
                    f"{name} must name a text, got {shown(text)}. Leave it out for its own."
                )
        for name in ("lr", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} must be a positive number, got {getattr(self, name)!r}.")
        if not 0 <= self.beta < math.inf:
            raise InputError(f"beta must be 0 (no teacher) or a larger number, got {self.beta!r}.")
