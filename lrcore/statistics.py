"""What calibration collects from one layer, and the moments it returns.

Taps, all per token:
  attn_in               input of the query, key and value projections [d]
  q_latent, kv_latent   input of what gives queries, or keys and values, from a normalised latent
                        [r], in multi-head latent attention; whatever is collected of attn_in is
                        collected of them
  attn_out              input of the output projection: head outputs side by side [n_q * d_h]
  weighted_values       attention-weighted values: the value states of every kv head under the
                        attention weights of every query head [n_q * n_kv * d_h]; only where a
                        method's options need them
  mlp_in                input of the up (and gate) projection [d]
  mlp_hidden            input of the down projection [d_f]
  attended_keys         keys under the attention weights of each query, without positions only
  q_rotated, k_rotated  queries and keys as they enter the score, after rotary embedding [n * d_h]
  block                 the layer's input and output [d]
  attention, mlp        the residual stream before and after each of them [d]

Of the routed experts of a layer (lrcore/experts.py):
  mlp_in:e, mlp_hidden:e  those taps of expert e, at the tokens routed to it; a token counts by the
                        square of its routing weight, and averages are over all tokens
  routing               the routing weight of every expert, 0 where a token is not routed to it [E]
  routed                1 where a token is routed to the expert, else 0 [E]

Statistics of a tap:
  second     E[x x^T], not centred
  mean       E[x]
  abs        E|x|
  square     E[x^2], the diagonal of second
  sample     at most SAMPLE of the activations [l, n], one of every block of so many tokens, in the
             model's dtype
  influence  Block Influence, 1 - E cos(x_in, x_out) (ShortGPT; MoDeGPT eq. 11 and B.11); only of
             block, attention and mlp
  angle      E arccos(cos(x_in, x_out)) / pi (FLAT-LLM); of the same taps

  softmax    E of the covariance of the keys under the attention weights of a query, averaged over
             the query heads of a kv head [n_kv, d_h, d_h]; only of attended_keys
  cross      E[x x'^T], x of the dense model and x' of one whose layers before are compressed;
             collected by compression/anchor.py where layers are compressed in sequence

Statistics of gradients (`GRADIENTS`) belong to a matrix instead of a tap and are collected by
calibration/gradients.py, which says what they are. Products are formed in the model's dtype, at
least float32, of rows whose mean is taken off where means are asked for, and accumulated in
float64.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .errors import InputError
from .precise import exact, exact_sum

Need = tuple[str, str]  # (tap, statistic)
SAMPLE = 1024
SECOND = "second"
BLOCK_INFLUENCE: Need = ("block", "influence")
BLOCK_ANGLE: Need = ("block", "angle")
GRADIENTS = frozenset(
    {"fisher", "taylor", "param_first", "param_second", "param_mix", "slope", "curvature"}
)
CROSS = "cross"
ATTENDED_KEYS: Need = ("attended_keys", "softmax")
PARTS = ("block", "attention", "mlp")  # the taps that have an influence
COMMON_TAPS = frozenset({"attn_in", "attn_out", "mlp_in", "mlp_hidden"})
LATENT_TAPS = frozenset({"q_latent", "kv_latent"})
TAPS = {  # the tap at the input of every matrix
    "q_a": "attn_in",
    "kv_a": "attn_in",
    "q_b": "q_latent",
    "kv_b": "kv_latent",
    "q": "attn_in",
    "k": "attn_in",
    "v": "attn_in",
    "o": "attn_out",
    "gate": "mlp_in",
    "up": "mlp_in",
    "down": "mlp_hidden",
}

BLOCK = 256  # rows of activations, or of a second moment, converted to float64 at once

STATISTICS = {"mean": lambda x: x, "abs": lambda x: x.abs(), "square": lambda x: x * x}

TURNS = {  # of the cosine between the stream before and after a part
    "influence": lambda cosine: 1 - cosine,
    "angle": lambda cosine: cosine.clamp(-1, 1).acos() / torch.pi,
}


def of_activations(needs: Iterable[Need]) -> frozenset[Need]:
    """Those of some needs that one pass through one network collects: neither statistics of
    gradients nor cross moments.
    """
    return frozenset(need for need in needs if need[1] not in {*GRADIENTS, CROSS})


def at_least_float32(x: Tensor) -> Tensor:
    """x itself, or in float32 where it has 16 bits. [...] -> [...].

    In float16 a sum of squares overflows at 65,504; in bfloat16 it keeps 3 digits, so that a mean
    of 50 sigma leaves no variance.
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


@dataclass(frozen=True, eq=False)
class Moments:
    """Averages over the calibration tokens of one layer, and samples of its activations.

    values: by (tap, statistic), float64; samples in the model's dtype. tokens: how many were seen.
    """

    values: Mapping[Need, Tensor]
    tokens: int

    def second(self, tap: str) -> Tensor:
        """E[x x^T] at a tap, [n, n]."""
        return self.values[tap, "second"]

    def mean(self, tap: str) -> Tensor:
        """E[x] at a tap, [n]."""
        return self.values[tap, "mean"]

    def square(self, tap: str) -> Tensor:
        """E[x^2] at a tap, [n]; the diagonal of the second moment where only that was collected."""
        return (
            self.values[tap, "square"]
            if (tap, "square") in self.values
            else self.second(tap).diagonal()
        )

    def cross(self, tap: str) -> Tensor:
        """E[x x'^T] at a tap, [n, n]; E[x x^T] where no layer before is compressed."""
        known = self.values.get((tap, CROSS))
        return self.second(tap) if known is None else known

    def centred(self, tap: str) -> Tensor:
        """The covariance S - mu mu^T at a tap, [n, n]."""
        mean = self.mean(tap)
        return self.second(tap).addr(mean, mean, alpha=-1)

    @property
    def influence(self) -> float:
        """Block Influence of the layer, in [0, 2]; 0 where the stream's direction is unchanged."""
        return float(self.values[BLOCK_INFLUENCE])


def is_finite(x: Tensor) -> bool:
    """Whether no number of x [...] is NaN or infinite: their sum says so in one pass through
    memory, unless it overflows itself.
    """
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def check_finite_moments(moments: Moments, layer: int) -> None:
    """Raises InputError where an average or a sample of a layer holds NaN or infinity."""
    for (tap, statistic), value in moments.values.items():
        if not is_finite(value):
            raise InputError(
                f"The activations at '{tap}' of layer {layer} are not finite ({statistic}). In "
                "float16 they overflow above 65,504: use dtype bfloat16 or float32. In float32, "
                "the weights of the model or its inputs are damaged."
            )


class EvenSample:
    """One row of every 2^k of a stream, with the least k that keeps at most SAMPLE rows.

    A long stream leaves more than SAMPLE / 2 rows. Which row of a block is kept follows from the
    places of its rows in the stream and the seed: every 2^k-th row would have the same few
    positions of every window, whose lengths are powers of two as well.
    """

    def __init__(self, seed: int = 0, first: int = 0) -> None:
        """first: the place of the first row, where others have the rows before it."""
        self.seen, self._stride, self._seed = first, 1, seed
        self._places: Tensor | None = None  # of the rows kept, ascending
        self._rows: Tensor | None = None

    @classmethod
    def joined(cls, parts: Sequence[tuple[Tensor, Tensor]], seen: int) -> "EvenSample":
        """Of the samples of the consecutive parts of a stream of `seen` rows, places [l] and rows
        [l, n] each: that of the whole stream.
        """
        whole = cls()
        while seen > SAMPLE * whole._stride:
            whole._stride *= 2
        whole._keep(*(torch.cat(both) for both in zip(*parts, strict=True)))
        return whole

    def add(self, rows: Tensor) -> None:
        """The next rows [..., n] of the stream."""
        places = torch.arange(self.seen, self.seen + len(rows), device=rows.device)
        self.seen += len(rows)
        chosen = self._chosen(places)
        places, rows = places[chosen], rows[chosen]
        if self._places is not None and self._rows is not None:
            # the last block may have begun before these rows
            places, rows = torch.cat((self._places, places)), torch.cat((self._rows, rows))
        self._keep(places, rows)

    def _keep(self, places: Tensor, rows: Tensor) -> None:
        """Of these rows, those that the sample holds."""
        chosen = self._chosen(places)
        places, rows = places[chosen], rows[chosen]
        while len(places) > SAMPLE:
            self._stride *= 2
            chosen = self._chosen(places)
            places, rows = places[chosen], rows[chosen]
        self._places, self._rows = places, rows

    def _chosen(self, places: Tensor) -> Tensor:
        """Of the places [l] in the stream, ascending, the indices of those that are kept: the one
        of least priority in every block.
        """
        by_priority = _priorities(places, self._seed).argsort(stable=True)
        blocks = places[by_priority].div(self._stride, rounding_mode="floor")
        first = by_priority[blocks.argsort(stable=True)]  # by block, by priority in each
        ordered = places[first].div(self._stride, rounding_mode="floor")
        begins = torch.ones_like(ordered, dtype=torch.bool)
        begins[1:] = ordered[1:] != ordered[:-1]
        return first[begins]

    @property
    def rows(self) -> Tensor:
        """What is kept, [l, n]."""
        assert self._rows is not None  # something was added
        return self._rows

    @property
    def places(self) -> Tensor:
        """The places of these rows in the stream, [l], ascending."""
        assert self._places is not None  # something was added
        return self._places

    @property
    def empty(self) -> bool:
        """Whether nothing was added."""
        return self._rows is None


def _priorities(places: Tensor, seed: int) -> Tensor:
    """A number for each place of a stream, int64, as if drawn at random: products that overflow, as
    in the finaliser of MurmurHash3. The same on every device.
    """
    mixed = places + 1 + seed * 0x2545F491
    for factor in (-0x61C8864680B583EB, -0x40A7B892E31B1A47):
        mixed = (mixed ^ (mixed >> 31)) * factor
    return mixed ^ (mixed >> 32)


def centred(x: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Rows x [m, n] without their mean: r [m, n] in the dtype of x, the sum of the rows [n] and
    c [n], float64, with `sum x x^T = r^T r + c c^T`, and so for the products with other rows of the
    same tokens. scale: what every row counts by, [m, 1], in all sums.

    Products are rounded to the dtype of x, and the square of a mean of 1,000 sigma is as large as
    what float32 leaves out of it times the variance: so the mean is taken off before rows are
    multiplied, and its square is added in float64. It is that of these rows alone, and thereby the
    same whoever has the rows before them.

    The mean is first known to the dtype of x, and what the rows without it still sum to is as small
    as they are: together they are exact to the rounding of r.
    """
    weight = exact(x.new_full((), len(x))) if scale is None else exact_sum(scale)
    at_least = weight.clamp_min(torch.finfo(weight.dtype).tiny)
    near = (exact(_added(x, scale)) / at_least).to(x.device, x.dtype)
    rows = x - near
    total = exact(near) * weight + exact(_added(rows, scale))
    root = total / at_least * weight.sqrt()
    return rows if scale is None else rows * scale.sqrt(), total, root


def _added(rows: Tensor, scale: Tensor | None) -> Tensor:
    """The sum of rows [m, n] that count by scale [m, 1], [n], in their dtype."""
    return (rows if scale is None else scale * rows).sum(0)


class SecondSum:
    """Sum of x x^T over the rows of a stream, [n, n] float64; only the upper blocks are stored."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []  # the i-th is [BLOCK, n - i BLOCK]
        self._means: list[Tensor] = []  # of the batches that are centred, [n] each

    def add(self, x: Tensor, mean: Tensor | None = None) -> None:
        """The next rows [m, n] of the stream; with `mean` [n], as `centred` gives both."""
        for i, start in enumerate(range(0, x.shape[-1], BLOCK)):
            product = x[:, start : start + BLOCK].mT @ x[:, start:]
            if i == len(self._blocks):
                self._blocks.append(exact(product))
            else:
                self._blocks[i].add_(product.to(self._blocks[i].device))
        if mean is not None:
            self._means.append(mean)

    def total(self) -> Tensor:
        """The whole matrix [n, n]; releases the blocks, so call it once, after the last `add`."""
        n = self._blocks[0].shape[-1]
        whole = self._blocks[0].new_empty(n, n)
        means = torch.stack(self._means) if self._means else None
        self._blocks.reverse()
        for start in range(0, n, BLOCK):
            rows = self._blocks.pop()
            if means is not None:
                rows.addmm_(means[:, start : start + BLOCK].mT, means[:, start:])
            whole[start : start + BLOCK, start:] = rows
            # on some processors x^T x is symmetric up to rounding alone; the disk has this triangle
            own = whole[start : start + BLOCK, start : start + BLOCK]
            own.copy_(own.triu() + own.triu(1).mT)
            whole[start + BLOCK :, start : start + BLOCK] = rows[:, BLOCK:].mT
        return whole


def _sum(statistic: str, x: Tensor, scale: Tensor | None) -> Tensor:
    """The sum over the rows [m, n] of what a statistic is the average of, [n] float64, every row
    counted by scale [m, 1]: of BLOCK rows in the dtype of x, which stay in the processor's cache,
    and of these sums in float64.
    """
    total = exact(x.new_zeros(x.shape[-1]))
    for start in range(0, len(x), BLOCK):
        rows = STATISTICS[statistic](x[start : start + BLOCK])
        total += exact(_added(rows, None if scale is None else scale[start : start + BLOCK]))
    return total


class _States:
    """States of the residual stream [..., d], in float32, whose lengths are found once."""

    def __init__(self, x: Tensor) -> None:
        self._x = x.float()

    @cached_property
    def _lengths(self) -> Tensor:
        lengths: Tensor = self._x.norm(dim=-1)
        return lengths.clamp_min(1e-8)  # the cosine with zero is 0

    def cosine(self, other: "_States") -> Tensor:
        """Of the angle between these states and others, [...]."""
        cosine: Tensor = (self._x * other._x).sum(-1) / (self._lengths * other._lengths)
        return cosine


class Accumulator:
    """Accumulates the statistics in `needs`, batch by batch, in float64: on the activations'
    device, or on the CPU where that has none.

    needs: (tap, statistic) pairs; "places" beside a sample are those of its rows. first: the place
    of the first token, where others see the tokens before it.
    """

    def __init__(self, needs: Iterable[Need], first: int = 0) -> None:
        self.needs = frozenset(needs)
        self.taps = frozenset(tap for tap, _ in self.needs)
        self._sums: dict[Need, Tensor] = {}
        self._seconds: dict[Need, SecondSum] = {}
        self._samples = {
            need: EvenSample(first=first) for need in self.needs if need[1] == "sample"
        }
        self._tokens = 0

    def observe(self, tap: str, x: Tensor, weights: Tensor | None = None) -> None:
        """Add a batch of activations [..., n] of a tap; weights [rows]: what every row counts by,
        in averages, instead of 1.
        """
        x = x.reshape(-1, x.shape[-1])
        wide = at_least_float32(x)
        scale = None if weights is None else weights.to(wide.dtype).unsqueeze(-1)
        sums = {name for name in STATISTICS if (tap, name) in self.needs}
        if (tap, SECOND) in self.needs:
            second = self._seconds.setdefault((tap, SECOND), SecondSum())
            if "mean" in sums:
                rows, total, root = centred(wide, scale)
                second.add(rows, root)
                self._add((tap, "mean"), total)
                sums.remove("mean")
            else:
                second.add(wide if scale is None else wide * scale.sqrt())
        for name in sums:
            self._add((tap, name), _sum(name, wide, scale))
        if (tap, "sample") in self.needs:
            self._samples[tap, "sample"].add(x)

    def observe_block(self, before: Tensor, after: Tensor, middle: Tensor | None = None) -> None:
        """Add a batch of the layer's input and output [..., d], and count its tokens.

        middle [..., d]: the residual stream between attention and MLP, needed for what is asked of
        them.
        """
        self._tokens += before[..., 0].numel()
        asked = [(part, name) for part, name in self.needs if part in PARTS and name in TURNS]
        if not asked:
            return
        first, last = _States(before), _States(after)
        between = None if middle is None else _States(middle)
        sides = {"block": (first, last), "attention": (first, between), "mlp": (between, last)}
        for part, name in asked:
            start, end = sides[part]
            assert start is not None
            assert end is not None
            self._add((part, name), exact_sum(TURNS[name](start.cosine(end))))

    def observe_sum(self, need: Need, value: Tensor) -> None:
        """Add the sum over the tokens of a batch, value [...], to what becomes an average."""
        self._add(need, value)

    def _add(self, need: Need, value: Tensor) -> None:
        value = exact(value)
        self._sums[need] = self._sums[need] + value if need in self._sums else value

    def moments(self) -> Moments:
        """The averages of all batches; call it once, since second moments are divided in place."""
        means = {need: total / self._tokens for need, total in self._sums.items()}
        for (tap, statistic), second in self._seconds.items():
            means[tap, statistic] = second.total().div_(self._tokens)
            # stored beside it, so that a reader of the squares alone need not load the matrix
            means.setdefault((tap, "square"), means[tap, statistic].diagonal().clone())
        samples = {need: one.rows for need, one in self._samples.items() if not one.empty}
        places = {
            (tap, "places"): self._samples[tap, "sample"].places
            for tap, _ in samples
            if (tap, "places") in self.needs
        }
        return Moments(means | samples | places, self._tokens)
