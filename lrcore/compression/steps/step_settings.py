"""The settings of compression steps, without torch: the command line uses them for help texts."""

import math
from dataclasses import MISSING, dataclass

from ...system.errors import InputError, shown, unknown
from ...system.settings import check_settings, setting


@dataclass(frozen=True)
class LayerPruning:
    """Settings of `prune_layers`: the number of layers and the criterion.

    Raises InputError for an invalid value.
    """

    layers: int = setting(MISSING, "How many decoder layers to drop.", low=1)
    criterion: str = setting(
        "influence",
        "influence (ShortGPT), or loss (SLEB): one layer after another, by the loss without it.",
        ("influence", "loss"),
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class ExpertPruning:
    """Settings of `prune_experts`: the number of experts and the criterion.

    Raises InputError for an invalid value.
    """

    experts: int = setting(MISSING, "Number of routed experts to drop from every layer.", low=1)
    criterion: str = setting(
        "activation",
        "activation (REAP), or loss: one expert after another, by the loss without it.",
        ("activation", "loss"),
    )
    merge: bool = setting(
        False,
        "With loss: merge an expert into the expert with the most similar outputs, if the loss is "
        "then lower than without it.",
    )
    candidates: int = setting(
        8, "With loss: number of experts of least activation that are tried each time.", low=1
    )

    def __post_init__(self) -> None:
        check_settings(self)


ROTATIONS = ("block", "one")


@dataclass(frozen=True)
class Slicing:
    """Settings of `slice_hidden`: bases and width of the residual stream.

    Raises InputError for an invalid value.
    """

    rotations: str = setting(
        "block", "block: a basis for every attention and MLP; one: a common basis.", ROTATIONS
    )
    multiple: int = setting(1, "The width is a multiple of this number, such as 8.", low=1)

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class Sharing:
    """Settings of `share_bases`: the number of neighboring layers with a common basis.

    Raises InputError for an invalid value.
    """

    group: int = setting(2, "Neighboring layers that share a basis.", low=1)

    def __post_init__(self) -> None:
        check_settings(self)


BITS = (8, 4, 3, 2)
QUANTIZERS = {
    "nearest": "nearest point of the grid with the least squared error, without data",
    "hqq": "zero points by half-quadratic steps, without data",
    "gptq": "columns compensate for the errors of earlier columns, on calibration text",
}


@dataclass(frozen=True)
class Quantizing:
    """Settings of `quantize`: bits per weight, weights per grid, and the rounding method.

    Raises InputError for an invalid value.
    """

    bits: int = setting(8, "Bits of a quantized weight: 8, 4, 3 or 2.")
    group: int = setting(64, "Weights that share a scale and a zero point.")
    quantizer: str = setting(
        "nearest",
        "nearest or hqq, without data; or gptq, which reads calibration text.",
        QUANTIZERS,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.bits not in BITS or not isinstance(self.group, int) or self.group < 8:
            raise InputError(
                f"Weights of {self.bits} bits in groups of {self.group} are not supported. Use 8, "
                "4, 3 or 2 bits, and groups of at least 8, such as 64."
            )

    @property
    def reads_text(self) -> bool:
        return self.quantizer == "gptq"


PATTERNS = ("2:4", "unstructured")
CRITERIA = ("sparsegpt", "wanda", "pruner_zero", "shrinkage")


@dataclass(frozen=True)
class Sparsifying:
    """Settings of `sparsify`: the criterion and pattern of the removed weights.

    Raises InputError for an invalid value.
    """

    criterion: str = setting(
        "sparsegpt",
        "sparsegpt (adjusts the remaining weights), wanda or pruner_zero (do not; the latter reads "
        "gradients), or shrinkage (LatentLLM's sparse matrices, unstructured).",
        CRITERIA,
    )
    pattern: str = setting(
        "2:4", "2:4 (two of every four weights), or unstructured (a share of all).", PATTERNS
    )
    density: float = setting(0.5, "With unstructured: the share of nonzero weights.")

    def __post_init__(self) -> None:
        check_settings(self)
        if self.criterion == "shrinkage" and self.pattern != "unstructured":
            raise InputError(
                "Criterion 'shrinkage' selects among all weights of a matrix. Use it with pattern "
                "'unstructured'."
            )
        if not 0 < self.density < 1 or (self.pattern == "2:4" and self.density != 0.5):
            raise InputError(
                f"density = {self.density}: enter a share between 0 and 1 with pattern "
                "'unstructured'; with 2:4 it is 0.5."
            )

    @property
    def share(self) -> float | None:
        """The share of nonzero weights; None for 2:4."""
        return self.density if self.pattern == "unstructured" else None

    @property
    def title(self) -> str:
        """A short name: "2:4" or "50% sparse"."""
        return "2:4" if self.share is None else f"{1 - self.density:.0%} sparse"


LORA = ("lora", "lora_mlp")
TRAINED = ("latents", "factors", "all", *LORA)


@dataclass(frozen=True)
class Healing:
    """Settings of `heal`. Raises InputError for an invalid value.

    data: text to train on, None for the recipe's. samples: windows of seq_len tokens, selected at
    random with the seed; each step uses `batch` of them, and no window is used twice before all
    were used once. lr: the highest learning rate of AdamW; latents tolerate ten times as much as
    full matrices and identity blocks. beta >= 0: weight of the divergence; temperature > 0: tau.
    rotary_channel: d_r, an even number, 0 for none. train: "latents", "factors" (the projections
    that compression changed), "all" parameters, "lora" or "lora_mlp" (adapters of lora_rank on all
    projections or the projections of MLPs, merged at the end, scaled by lora_alpha / lora_rank), or
    "auto".

    test: text whose first test_samples windows are scored before and after; None for the test split
    of `data`. A file that is trained on cannot be the test, and test_samples 0 measures nothing.
    """

    data: str | None = setting(None, "Text to train on. Default: the calibration text.")
    samples: int = setting(512, "Windows to train on, selected at random.")
    seq_len: int = setting(256, "Tokens per window.")
    steps: int = setting(200, "Steps of AdamW.", low=1)
    batch: int = setting(8, "Windows per step.", low=1)
    lr: float = setting(3e-4, "Highest learning rate; latents take ten times as much.")
    beta: float = setting(
        1.0, "Weight of the divergence from the dense model; 0: only cross-entropy."
    )
    temperature: float = setting(2.0, "tau of the divergence, whose weight is beta tau^2.")
    rotary_channel: int = setting(
        0, "For care: width of a new rotary channel per head; 0: none.", low=0, metavar="D_R"
    )
    train: str = setting(
        "auto",
        "latents, factors (what compression changed), all, auto (by the method), or merged "
        "adapters: lora, lora_mlp.",
    )
    lora_rank: int = setting(8, "Rank of the adapters.", low=1)
    lora_alpha: int = setting(16, "Adapters are scaled by alpha / rank.", low=1)
    test: str | None = setting(None, "Text to measure on. Default: the test split of the data.")
    test_samples: int = setting(16, "Windows measured before and after; 0: none.", low=0)
    seed: int = setting(0, "Seed of windows, their order and the new channel.")

    def __post_init__(self) -> None:
        if self.train not in ("auto", *TRAINED):
            raise unknown("choice of what to train", str(self.train), ("auto", *TRAINED))
        check_settings(self)
        if self.rotary_channel % 2:
            raise InputError(
                f"rotary_channel = {self.rotary_channel}: rotary positions rotate pairs. Enter an "
                "even width, such as 8."
            )
        for name in ("data", "test"):
            text = getattr(self, name)
            if text is not None and not (isinstance(text, str) and text.strip()):
                raise InputError(
                    f"{name} must name a text, got {shown(text)}. Omit it to use the default."
                )
        for name in ("lr", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} must be a positive number, got {getattr(self, name)!r}.")
        if not 0 <= self.beta < math.inf:
            raise InputError(f"beta must be 0 (no teacher) or positive, got {self.beta!r}.")
