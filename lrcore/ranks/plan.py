"""Rank plans: the rank of each slot, and the resulting size and cost of the model."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..layers.account import LayerWork, ModelAccount, PlanSummary, SizeAndCost, flops_per_token
from ..layers.spectra import Slot, Spectrum
from ..recipes.history import SlotRank
from ..system.notebooks import frame, html_table, ranks_figure
from .evidence import AgainstUniform, Probes
from .prediction import Predicted, perplexity
from .quantization import Quantization
from .repricing import Latency

if TYPE_CHECKING:
    import pandas as pd

    from ..system.notebooks import Figure


@dataclass(frozen=True)
class Shape:
    """Sizes of a model that a plan needs for its account.

    parameters: all parameters, tied ones once. decoder_linear: weights and biases of the decoder
    projections. itemsize: bytes per number. extra_bytes: of numbers outside the projections in a
    wider dtype, such as routers of experts in float32, and of stored numbers that are not
    parameters, such as the corrections of a router. kv_values: cached numbers per token.
    head_parameters: weights of the output embedding, multiplied once per token. work: multiply-adds
    of each layer. experts: weights of routed experts. state_bytes: see `ModelAccount`. family:
    `model_type` of the config of the decoder; "" if unknown.
    """

    parameters: int
    decoder_linear: int
    itemsize: int
    layers: int
    kv_values: int
    head_parameters: int
    work: tuple[LayerWork, ...]
    extra_bytes: int = 0
    experts: int = 0
    state_bytes: int = 0
    family: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of the dense model."""
        return self.parameters * self.itemsize + self.extra_bytes

    def base(self, kind: str) -> int:
        """Return the quantity of the dense model that a kind of budget counts: "params",
        "all_params", "kv" or "bytes".
        """
        return {
            "params": self.decoder_linear,
            "all_params": self.parameters,
            "kv": self.kv_values,
            "bytes": self.bytes,
        }[kind]

    def multiply_adds(self, context: int) -> int:
        """Return the multiply-adds of a token with `context` tokens in the cache."""
        return flops_per_token(self.work, self.head_parameters, context) // 2


@dataclass(frozen=True, eq=False)
class RankPlan:
    """Ranks {(layer, component): rank}, with exact size and cost of the resulting model.

    requested: share to remove. temperature, suggested_temperature: the temperature used and the
    automatic choice; None for policies without a temperature.
    against_uniform: comparison with uniform ranks; None if not measured. by_probes: True if the
    policy chose the ranks by the probes. latency: measured times of the layers, if the budget
    counts time. is_trained: True if the compression also trains the layers. bits: of the slots with
    rounded numbers, if the budget counts bytes; quantization: the measurements that they follow
    from.
    """

    ranks: dict[Slot, int]
    spectra: dict[Slot, Spectrum]
    shape: Shape
    budget: str
    requested: float
    seq_len: int
    temperature: float | None = None
    suggested_temperature: float | None = None
    probes: Probes | None = None
    against_uniform: AgainstUniform | None = None
    by_probes: bool = False
    latency: Latency | None = None
    is_trained: bool = False
    bits: Mapping[Slot, int] = field(default_factory=dict)
    quantization: Quantization = field(default_factory=Quantization)

    @property
    def key(self) -> tuple[list[list[Any]], ...]:
        """Ranks, and bits if there are any, as sorted JSON-able rows: the key of its results."""
        values = (self.ranks, self.bits) if self.bits else (self.ranks,)
        return tuple(sorted([*slot, value] for slot, value in each.items()) for each in values)

    @property
    def summed_increase(self) -> float | None:
        """Sum of the predicted increases in loss of single slots, nats/token, or None."""
        if self.probes is None:
            return None
        curves = self.probes.curves
        increases = (curves[slot].loss(self.ranks[slot]) for slot in self.spectra)
        rounded = (
            self.quantization.rise(self.spectra[slot], self.ranks[slot], bits)
            for slot, bits in self.bits.items()
        )
        return sum(increases) + sum(rounded)

    @property
    def predicted(self) -> Predicted | None:
        """Predicted perplexity of the compressed model; None without probes, if the layers are
        trained, and if the prediction is not trustworthy, see `Predicted.is_trustworthy`.

        If joint plans were measured (`Probes.interaction`), it refers to the test split of the
        calibration text and has an interval, low to high. Otherwise it refers to the probing
        windows: exp of the dense loss plus the summed increases, without an interval.
        """
        return self.predicted_for()

    def predicted_for(self, tokens: int | None = None) -> Predicted | None:
        """Return `predicted` for a sample of `tokens` tokens, at least 1, of the same text.

        The fewer the tokens, the wider the interval; None: all tokens of the text.
        """
        summed, probes, dense = self.summed_increase, self.probes, self.dense_perplexity
        if probes is None or summed is None or dense is None or self.is_trained:
            return None
        if probes.interaction is not None:
            predicted = probes.interaction.on_sample(tokens).predict(summed, self.by_probes)
        else:
            predicted = Predicted(perplexity(probes.dense_loss + summed))
        return predicted if predicted.is_trustworthy(dense) else None

    @property
    def dense_perplexity(self) -> float | None:
        """Perplexity of the dense model on the text of `predicted`; None without probes."""
        if self.probes is None:
            return None
        if self.probes.interaction is not None:
            return self.probes.interaction.predict(0.0).perplexity
        return perplexity(self.probes.dense_loss)

    @property
    def slot_ranks(self) -> tuple[SlotRank, ...]:
        """A row per slot."""
        rows = []
        for slot, rank in self.ranks.items():
            s, itemsize = self.spectra[slot], self.shape.itemsize
            parameters, dense = s.cost.parameters(rank), s.cost.dense
            rows.append(
                SlotRank(
                    layer=slot[0],
                    component=slot[1],
                    rank=rank,
                    full=s.cost.full,
                    keep=parameters / dense,
                    parameters=parameters,
                    dense_parameters=dense,
                    kv_bytes=s.cost.kv(rank) * itemsize,
                    dense_kv_bytes=s.cost.kv_dense * itemsize,
                    energy=s.energy(rank),
                    bits=self.bits.get(slot, 0),
                )
            )
        return tuple(rows)

    def table(self) -> "pd.DataFrame":
        """Return a row per slot, with the fields of `SlotRank` as columns."""
        return frame([asdict(row) for row in self.slot_ranks])

    @property
    def _title(self) -> str:
        """Size and budget in one line."""
        account = self.account
        words = {
            "kv": "KV cache",
            "both": "decoder parameters and of the KV cache",
            "all_params": "parameters",
            "flops": "FLOPs per token",
            "latency": "decoder layers' time",
            "bytes": "bytes",
        }
        quantity = words.get(self.budget, "decoder parameters")
        return (
            f"{account.achieved:.1%} of the {quantity} removed: "
            f"{account.model.parameters:,} parameters, "
            f"{account.model.kv_bytes_per_token:,} bytes of cache per token"
        )

    def __repr__(self) -> str:
        return f"RankPlan({len(self.ranks)} slots in {self.shape.layers} layers; {self._title})"

    def _repr_html_(self) -> str:
        """Return a table of the ranks for notebooks, a row per layer."""
        table = self.table()
        table["of"] = table["rank"].astype(str) + " of " + table["full"].astype(str)
        ranks = table.pivot(index="layer", columns="component", values="of")
        return html_table(self._title, ranks[list(table["component"].unique())])

    def figure(self) -> "Figure":
        """Return a plotly figure: the share of the full rank of each slot, by layer."""
        return ranks_figure(self.table(), self._title)

    def kept_by_layer(self) -> list[float]:
        """Return the share of the parameters that each layer keeps, in layer order.

        If the budget counts the KV cache, it is the share of the cached numbers; if it counts
        bytes, the share of the bytes.
        """
        kept_prices, dense_prices = [0.0] * self.shape.layers, [0.0] * self.shape.layers
        for slot, rank in self.ranks.items():
            cost = self.spectra[slot].cost
            if self.budget == "bytes":
                kept_prices[slot[0]] += self.slot_bytes(slot)
                dense_prices[slot[0]] += cost.dense * self.shape.itemsize
                continue
            price = cost.kv if self.budget == "kv" else cost.parameters
            kept_prices[slot[0]] += price(rank)
            dense_prices[slot[0]] += price(cost.full)
        return [
            kept_price / dense_price if dense_price else 1.0
            for kept_price, dense_price in zip(kept_prices, dense_prices, strict=True)
        ]

    def work(self) -> list[LayerWork]:
        """Return the multiply-adds of each layer with these ranks."""
        work = list(self.shape.work)
        for (layer, component), rank in self.ranks.items():
            cost, layer_work = self.spectra[layer, component].cost, work[layer]
            if rank < cost.full:
                cached = cost.cached_products(rank) - cost.cached_dense
                saved = cost.products(cost.full) - cost.products(rank)
                work[layer] = LayerWork(layer_work.weights - saved, layer_work.cached + cached)
        return work

    def _flops(self, work: Sequence[LayerWork]) -> int:
        return flops_per_token(work, self.shape.head_parameters, self.seq_len)

    def slot_bytes(self, slot: Slot) -> float:
        """Return the bytes of a slot in its stored form."""
        s, rank, itemsize = self.spectra[slot], self.ranks[slot], self.shape.itemsize
        if self.budget == "bytes":
            return self.quantization.bytes(s, rank, self.bits.get(slot, 0), itemsize)
        return s.cost.bytes(rank, itemsize)

    def _bytes(self) -> float:
        """Return the bytes of the model, with the slots in their stored form."""
        dense = sum(s.cost.dense for s in self.spectra.values()) * self.shape.itemsize
        return self.shape.bytes - dense + sum(map(self.slot_bytes, self.spectra))

    def _seconds_per_token(self, ranks: dict[Slot, int]) -> float | None:
        """Return the time of the decoder layers with these ranks, other slots at full rank; or
        None.
        """
        if self.latency is None:
            return None
        return self.latency.of(ranks, self.spectra) / self.latency.tokens

    @cached_property
    def account(self) -> SizeAndCost:
        """Size and cost of the model with these ranks, compared with the dense model."""
        shape = self.shape
        costs = [(s.cost, self.ranks[slot]) for slot, s in self.spectra.items()]
        removed = sum(cost.dense - cost.parameters(rank) for cost, rank in costs)
        uncached = sum(cost.kv_dense - cost.kv(rank) for cost, rank in costs)
        energies = [s.energy(self.ranks[slot]) for slot, s in self.spectra.items()]
        comparison, predicted = self.against_uniform, self.predicted
        planned = PlanSummary(
            self.requested,
            sum(energies) / len(energies),
            self.temperature,
            self.suggested_temperature,
            None if predicted is None else predicted.perplexity,
            None if predicted is None else predicted.low,
            None if predicted is None else predicted.high,
            None if self.probes is None else self.probes.held_out,
            None if comparison is None else comparison.divergence,
            None if comparison is None else comparison.uniform,
            None if comparison is None else comparison.hurts,
        )
        dense = ModelAccount(
            shape.parameters,
            shape.decoder_linear,
            shape.bytes,
            shape.kv_values * shape.itemsize,
            self._flops(shape.work),
            self._seconds_per_token({}),
            shape.state_bytes,
        )
        compressed = ModelAccount(
            shape.parameters - removed,
            shape.decoder_linear - removed,
            self._bytes(),
            (shape.kv_values - uncached) * shape.itemsize,
            self._flops(self.work()),
            self._seconds_per_token(self.ranks),
            shape.state_bytes,
        )
        return SizeAndCost(compressed, dense, self.budget, planned)

    def summary(self) -> dict[str, Any]:
        """Return the account as a flat JSON-able dictionary; see `SizeAndCost.to_dict`."""
        return self.account.to_dict()
