"""Statistics that calibration collects from one layer, and the moments computed from them.

Taps, all per token:
  attn_in               input of the query, key and value projections [d]
  q_latent, kv_latent   input of the projections from a normalized latent to queries, or to keys and
                        values [r], in multi-head latent attention; collected together with attn_in
  attn_out              input of the output projection: head outputs side by side [n_q * d_h]
  weighted_values       attention-weighted values: the value states of each kv head under the
                        attention weights of each query head [n_q * n_kv * d_h]; only if a method's
                        options need them
  mlp_in                input of the up (and gate) projection [d]
  mlp_hidden            input of the down projection [d_f]
  attended_keys         keys under the attention weights of each query; only without positions
  q_rotated, k_rotated  queries and keys after the rotary embedding, as in the score [n * d_h]
  block                 the layer's input and output [d]
  attention, mlp        the residual stream before and after attention and MLP [d]

Taps of routed experts (lrcore/layers/experts.py):
  mlp_in:e, mlp_hidden:e  taps of expert e, at the tokens routed to it; a token counts by the square
                        of its routing weight, and averages are over all tokens
  routing               the routing weight of each expert, 0 if a token is not routed to it [E]
  routed                1 if a token is routed to the expert, else 0 [E]

Statistics of a tap:
  second     E[x x^T], not centered
  mean       E[x]
  abs        E|x|
  square     E[x^2], the diagonal of second; collected with every second
  sample     at most SAMPLE of the activations [l, n], one per block of equally many tokens, in
             the model's dtype
  influence  Block Influence, 1 - E cos(x_in, x_out) (ShortGPT; MoDeGPT eq. 11 and B.11); only of
             block, attention and mlp
  angle      E arccos(cos(x_in, x_out)) / pi (FLAT-LLM); of the same taps
  softmax    E of the covariance of the keys under the attention weights of a query, averaged over
             the query heads of a kv head [n_kv, d_h, d_h]; only of attended_keys
  cross      E[x x'^T], x of the dense model and x' of a model with compressed earlier layers;
             collected when layers are compressed in sequence

Statistics of gradients (`GRADIENTS`) belong to a matrix instead of a tap; calibration/gradients.py
collects and describes them. Products are computed in the model's dtype, at least float32, and
accumulated in float64. Rows are centered before they are multiplied or squared if their mean is
requested.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..system.errors import InputError
from .layer import MIXER_INPUTS
from .linalg import sum_float64, to_float64

Need = tuple[str, str]  # (tap, statistic)
SAMPLE = 1024
SECOND, SQUARE, MEAN = "second", "square", "mean"
BLOCK_INFLUENCE: Need = ("block", "influence")
BLOCK_ANGLE: Need = ("block", "angle")
SAMPLED_CURVATURE, TEXT_CURVATURE = "sampled_curvature", "text_curvature"
OUTPUT_CURVATURES = (SAMPLED_CURVATURE, TEXT_CURVATURE)  # of the outputs of all projections
GRADIENTS = frozenset(
    {"fisher", "taylor", "param_first", "param_second", "param_mix", "slope", "curvature"}
).union(OUTPUT_CURVATURES)
CROSS = "cross"
ATTENDED_KEYS: Need = ("attended_keys", "softmax")
STREAM_TAPS = ("block", "attention", "mlp")  # taps with the statistics "influence" and "angle"
# the inputs of all matrices of usual layers: the needs of a method that solves all matrices
COMMON_TAPS = frozenset({"attn_in", "attn_out", "mlp_in", "mlp_hidden"})
# collected together with "attn_in" if a layer has latents, so methods do not list them
LATENT_TAPS = frozenset({"q_latent", "kv_latent"})


class _Taps(dict[str, str]):
    """The tap at the input of each matrix; a matrix that was found by structure has its own."""

    def __missing__(self, name: str) -> str:
        return name


TAPS = _Taps(
    dict.fromkeys(MIXER_INPUTS, "attn_in"),
    q_a="attn_in",
    kv_a="attn_in",
    q_b="q_latent",
    kv_b="kv_latent",
    q="attn_in",
    k="attn_in",
    v="attn_in",
    o="attn_out",
    gate="mlp_in",
    up="mlp_in",
    down="mlp_hidden",
)

BLOCK = 256  # rows of activations, or of a second moment, converted to float64 at once

STATISTICS = {"mean": lambda x: x, "abs": lambda x: x.abs(), "square": lambda x: x * x}

# functions of the cosine between the stream before and after a tap
DIRECTION_CHANGES = {
    "influence": lambda cosine: 1 - cosine,
    "angle": lambda cosine: cosine.clamp(-1, 1).acos() / torch.pi,
}


def activation_needs(needs: Iterable[Need]) -> frozenset[Need]:
    """Return the needs that a pass through a network collects.

    Statistics of gradients and cross moments are left out.
    """
    return frozenset(need for need in needs if need[1] not in {*GRADIENTS, CROSS})


def missing_needs(needs: Iterable[Need], collected: Collection[Need]) -> frozenset[Need]:
    """Return the needs that are not collected. The squares of a tap come with its second moment."""
    return frozenset(
        (tap, statistic)
        for tap, statistic in needs
        if (tap, statistic) not in collected
        and (statistic != SQUARE or (tap, SECOND) not in collected)
    )


def at_least_float32(x: Tensor) -> Tensor:
    """Return x, converted to float32 if it has 16 bits. [...] -> [...].

    In float16 a sum of squares overflows at 65,504. bfloat16 has fewer than 3 decimal digits, so
    the variance is lost if the mean is 50 standard deviations.
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


@dataclass(frozen=True, eq=False)
class Moments:
    """Averages over the calibration tokens of a layer, and samples of activations.

    values: by (tap, statistic), float64; samples in the model's dtype. tokens: number of tokens.
    """

    values: Mapping[Need, Tensor]
    tokens: int

    def second(self, tap: str) -> Tensor:
        """Return E[x x^T] at a tap, [n, n]."""
        return self.values[tap, "second"]

    def mean(self, tap: str) -> Tensor:
        """Return E[x] at a tap, [n]."""
        return self.values[tap, "mean"]

    def square(self, tap: str) -> Tensor:
        """Return E[x^2] at a tap, [n]: the diagonal of the second moment if it was not collected
        separately.
        """
        return (
            self.values[tap, "square"]
            if (tap, "square") in self.values
            else self.second(tap).diagonal()
        )

    def cross(self, tap: str) -> Tensor:
        """Return E[x x'^T] at a tap, [n, n]; E[x x^T] if no earlier layer is compressed."""
        collected = self.values.get((tap, CROSS))
        return self.second(tap) if collected is None else collected

    def centered(self, tap: str) -> Tensor:
        """Return the covariance S - mu mu^T at a tap, [n, n]."""
        mean = self.mean(tap)
        return self.second(tap).addr(mean, mean, alpha=-1)

    @property
    def influence(self) -> float:
        """Block Influence of the layer, in [0, 2]; 0 if the direction of the stream does not
        change.
        """
        return float(self.values[BLOCK_INFLUENCE])


def is_finite(x: Tensor) -> bool:
    """Return False if x [...] contains NaN or infinity.

    Their sum detects this in a single pass through memory, unless the sum itself overflows.
    """
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def check_finite_moments(moments: Moments, layer: int) -> None:
    """Raise InputError if an average or a sample of a layer contains NaN or infinity."""
    for (tap, statistic), value in moments.values.items():
        if not is_finite(value):
            raise InputError(
                f"The activations at '{tap}' of layer {layer} are not finite ({statistic}). In "
                "float16 they overflow above 65,504: use dtype bfloat16 or float32. In float32, "
                "the weights of the model or its inputs are damaged."
            )


class EvenSample:
    """A sample of a stream: one row per block of 2^k rows, with the smallest k for at most
    SAMPLE rows.

    A long stream yields more than SAMPLE / 2 rows. The choice within a block is pseudo-random and
    depends only on the positions of the rows in the stream and on the seed: every 2^k-th row would
    fall on the same few positions of all windows, whose lengths are powers of two as well.
    """

    def __init__(self, seed: int = 0, first: int = 0) -> None:
        """first: the position of the first row, if earlier rows of the stream are sampled
        elsewhere.
        """
        self.seen, self._stride, self._seed = first, 1, seed
        self._positions: Tensor | None = None  # of the sampled rows, ascending
        self._rows: Tensor | None = None

    @classmethod
    def joined(cls, parts: Sequence[tuple[Tensor, Tensor]], seen: int) -> "EvenSample":
        """Join the samples of consecutive parts of a stream of `seen` rows.

        parts: positions [l] and rows [l, n] of each sample. The result equals the sample of the
        complete stream.
        """
        sample = cls()
        while seen > SAMPLE * sample._stride:
            sample._stride *= 2
        sample._keep(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
        return sample

    def add(self, rows: Tensor) -> None:
        """Add the next rows [..., n] of the stream."""
        positions = torch.arange(self.seen, self.seen + len(rows), device=rows.device)
        self.seen += len(rows)
        if self._positions is not None and self._rows is not None:
            chosen = self._chosen(positions)
            # the last block may have begun before these rows
            positions = torch.cat((self._positions, positions[chosen]))
            rows = torch.cat((self._rows, rows[chosen]))
        self._keep(positions, rows)

    def _keep(self, positions: Tensor, rows: Tensor) -> None:
        """Store the sampled rows; double the blocks until they are at most SAMPLE rows."""
        chosen = self._chosen(positions)
        while len(chosen) > SAMPLE:
            self._stride *= 2
            chosen = chosen[self._chosen(positions[chosen])]
        self._positions, self._rows = positions[chosen], rows[chosen]

    def _chosen(self, positions: Tensor) -> Tensor:
        """Return the indices of the sampled positions [l] (ascending): the lowest priority in each
        block.
        """
        by_priority = _priorities(positions, self._seed).argsort(stable=True)
        blocks = positions[by_priority].div(self._stride, rounding_mode="floor")
        first = by_priority[blocks.argsort(stable=True)]  # by block, then by priority
        ordered = positions[first].div(self._stride, rounding_mode="floor")
        begins = torch.ones_like(ordered, dtype=torch.bool)
        begins[1:] = ordered[1:] != ordered[:-1]
        return first[begins]

    @property
    def rows(self) -> Tensor:
        """The sampled rows, [l, n]."""
        assert self._rows is not None  # `add` was called
        return self._rows

    @property
    def positions(self) -> Tensor:
        """The positions of the sampled rows in the stream, [l], ascending."""
        assert self._positions is not None  # `add` was called
        return self._positions

    @property
    def is_empty(self) -> bool:
        """True if no row was added."""
        return self._rows is None


def _priorities(positions: Tensor, seed: int) -> Tensor:
    """Return a pseudo-random int64 number for each position of a stream, the same on all devices.

    Overflowing products as in the finalizer of MurmurHash3.
    """
    mixed = positions + 1 + seed * 0x2545F491
    for factor in (-0x61C8864680B583EB, -0x40A7B892E31B1A47):
        mixed = (mixed ^ (mixed >> 31)) * factor
    return mixed ^ (mixed >> 32)


def centered(x: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Center rows x [m, n]. Return the centered rows r [m, n], the sum of the rows [n] and a
    correction c [n].

    r has the dtype of x, the sums are float64, and `sum x x^T = r^T r + c c^T`; the same holds for
    products with other rows of the same tokens. scale [m, 1]: weight of each row in all sums.

    Products are rounded to the dtype of x. If the mean is 1,000 standard deviations, the rounding
    error of a float32 product is about as large as the variance. Therefore the mean is subtracted
    before rows are multiplied, and its square is added in float64. It is the mean of these rows
    only, so the result does not depend on how a stream is split between workers.

    The mean is first computed in the dtype of x. The remaining sum of the centered rows is then
    small, so the total is exact to the rounding of r.
    """
    weight = to_float64(x.new_full((), len(x))) if scale is None else sum_float64(scale)
    positive_weight = weight.clamp_min(torch.finfo(weight.dtype).tiny)
    rounded_mean = (to_float64(_added(x, scale)) / positive_weight).to(x.device, x.dtype)
    rows = x - rounded_mean
    total = to_float64(rounded_mean) * weight + to_float64(_added(rows, scale))
    root = total / positive_weight * weight.sqrt()
    return rows if scale is None else rows * scale.sqrt(), total, root


def _added(rows: Tensor, scale: Tensor | None) -> Tensor:
    """Return the sum of rows [m, n] with weights scale [m, 1], [n], in their dtype."""
    return (rows if scale is None else scale * rows).sum(0)


class SecondMomentSum:
    """Sum of x x^T over the rows of a stream, [n, n] float64; only the upper blocks are stored."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []  # the i-th is [BLOCK, n - i BLOCK]
        self._means: list[Tensor] = []  # corrections of centered batches, [n] each

    def add(self, x: Tensor, mean: Tensor | None = None) -> None:
        """Add the next rows [m, n] of the stream. mean [n]: the correction if `centered` made the
        rows.
        """
        for i, start in enumerate(range(0, x.shape[-1], BLOCK)):
            product = x[:, start : start + BLOCK].mT @ x[:, start:]
            if i == len(self._blocks):
                self._blocks.append(to_float64(product))
            else:
                self._blocks[i].add_(product.to(self._blocks[i].device))
        if mean is not None:
            self._means.append(mean)

    def total(self) -> Tensor:
        """Return the complete matrix [n, n]. Call it once, after the last `add`: it releases the
        blocks.
        """
        n = self._blocks[0].shape[-1]
        matrix = self._blocks[0].new_empty(n, n)
        means = torch.stack(self._means) if self._means else None
        self._blocks.reverse()
        for start in range(0, n, BLOCK):
            rows = self._blocks.pop()
            if means is not None:
                rows.addmm_(means[:, start : start + BLOCK].mT, means[:, start:])
            matrix[start : start + BLOCK, start:] = rows
            # x^T x may be symmetric only up to rounding; the cache on disk stores this triangle
            diagonal_block = matrix[start : start + BLOCK, start : start + BLOCK]
            diagonal_block.copy_(diagonal_block.triu() + diagonal_block.triu(1).mT)
            matrix[start + BLOCK :, start : start + BLOCK] = rows[:, BLOCK:].mT
        return matrix


def _sum(statistic: str, x: Tensor, scale: Tensor | None) -> Tensor:
    """Return the sum over rows [m, n] of a statistic, [n] float64. scale [m, 1]: weight of each
    row.

    A block of BLOCK rows fits in the processor's cache and is summed in the dtype of x. The sums of
    the blocks are added in float64. Another device sums all rows at once: each block would start
    several kernels.
    """
    total, size = to_float64(x.new_zeros(x.shape[-1])), BLOCK if x.device.type == "cpu" else len(x)
    for start in range(0, len(x), max(size, 1)):
        rows = STATISTICS[statistic](x[start : start + size])
        total += to_float64(_added(rows, None if scale is None else scale[start : start + size]))
    return total


class _States:
    """States of the residual stream [..., d] in float32, whose norms are computed once."""

    def __init__(self, x: Tensor) -> None:
        self._x = x.float()

    @cached_property
    def _lengths(self) -> Tensor:
        lengths: Tensor = self._x.norm(dim=-1)
        return lengths.clamp_min(1e-8)  # so that the cosine with a zero vector is 0

    def cosine(self, second: "_States") -> Tensor:
        """Return the cosine of the angle between these states and `second`, [...]."""
        cosine: Tensor = (self._x * second._x).sum(-1) / (self._lengths * second._lengths)
        return cosine


class Accumulator:
    """Accumulate the statistics in `needs`, batch by batch, in float64.

    Sums are on the device of the activations, or on the CPU if that has no float64. needs: (tap,
    statistic) pairs; the statistic "places" holds the positions of the rows of a sample. first: the
    position of the first token, if earlier tokens are accumulated elsewhere.
    """

    def __init__(self, needs: Iterable[Need], first: int = 0) -> None:
        self.needs = frozenset(needs)
        self.taps = frozenset(tap for tap, _ in self.needs)
        self._sums: dict[Need, Tensor] = {}
        self._seconds: dict[Need, SecondMomentSum] = {}
        self._samples = {
            need: EvenSample(first=first) for need in self.needs if need[1] == "sample"
        }
        self._tokens = 0

    def observe(self, tap: str, x: Tensor, weights: Tensor | None = None) -> None:
        """Add a batch of activations [..., n] of a tap. weights [rows]: weight of each row, 1 by
        default.
        """
        x = x.reshape(-1, x.shape[-1])
        precise = at_least_float32(x)
        scale = None if weights is None else weights.to(precise.dtype).unsqueeze(-1)
        sums = {name for name in STATISTICS if (tap, name) in self.needs}
        if not self.needs.isdisjoint({(tap, SECOND), (tap, SQUARE)}):
            self._observe_products(tap, precise, scale)
            sums -= {SQUARE, MEAN}
        for name in sums:
            self._add((tap, name), _sum(name, precise, scale))
        if (tap, "sample") in self.needs:
            self._samples[tap, "sample"].add(x)

    def _observe_products(self, tap: str, x: Tensor, scale: Tensor | None) -> None:
        """Add the squares of rows [m, n], their products if needed, and their sum if needed."""
        root = None
        if (tap, MEAN) in self.needs:
            rows, total, root = centered(x, scale)
            self._add((tap, MEAN), total)
        else:
            rows = x if scale is None else x * scale.sqrt()
        if (tap, SECOND) in self.needs:
            self._seconds.setdefault((tap, SECOND), SecondMomentSum()).add(rows, root)
        # not the diagonal of the products, so that the squares are the same without them
        squares = _sum(SQUARE, rows, None)
        self._add((tap, SQUARE), squares if root is None else squares + root**2)

    def observe_block(self, before: Tensor, after: Tensor, middle: Tensor | None = None) -> None:
        """Add a batch of the layer's input and output [..., d], and count the tokens.

        middle [..., d]: the residual stream between attention and MLP, needed for their statistics.
        """
        self._tokens += before[..., 0].numel()
        needs = [
            (part, name)
            for part, name in self.needs
            if part in STREAM_TAPS and name in DIRECTION_CHANGES
        ]
        if not needs:
            return
        start_states, end_states = _States(before), _States(after)
        middle_states = None if middle is None else _States(middle)
        sides = {
            "block": (start_states, end_states),
            "attention": (start_states, middle_states),
            "mlp": (middle_states, end_states),
        }
        for part, name in needs:
            start, end = sides[part]
            assert start is not None
            assert end is not None
            self._add((part, name), sum_float64(DIRECTION_CHANGES[name](start.cosine(end))))

    def observe_sum(self, need: Need, value: Tensor) -> None:
        """Add value [...], a sum over the tokens of a batch; `moments` divides it by all tokens."""
        self._add(need, value)

    def _add(self, need: Need, value: Tensor) -> None:
        value = to_float64(value)
        self._sums[need] = self._sums[need] + value if need in self._sums else value

    def moments(self) -> Moments:
        """Return the averages of all batches. Call it once: second moments are divided in place."""
        means = {need: total / self._tokens for need, total in self._sums.items()}
        for (tap, statistic), second in self._seconds.items():
            means[tap, statistic] = second.total().div_(self._tokens)
        samples = {
            need: sample.rows for need, sample in self._samples.items() if not sample.is_empty
        }
        positions = {
            (tap, "places"): self._samples[tap, "sample"].positions
            for tap, _ in samples
            if (tap, "places") in self.needs
        }
        return Moments(means | samples | positions, self._tokens)
