"""A rank plan: the whole ranks of every slot, and what the model will weigh with them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .account import LayerWork, ModelAccount, Planned, SizeAndCost, flops_per_token
from .evidence import AgainstUniform, Probes
from .history import SlotRank
from .latency import Latency
from .notebooks import html_table, ranks_figure
from .prediction import Predicted, perplexity
from .spectra import Slot, Spectrum
from .tables import frame

if TYPE_CHECKING:
    import pandas as pd

    from .notebooks import Figure


@dataclass(frozen=True)
class Shape:
    """What a plan must know of the model it is for to account for itself.

    parameters: all, tied ones once. decoder_linear: weights and biases of the decoder projections.
    itemsize: bytes per number. extra_bytes: of numbers outside the projections that stay in a wider
    type, such as routers of experts in float32, and of stored ones that are no parameters, such as
    the corrections of a router.
    kv_values: cached numbers per token. head_parameters: weights of the output embedding,
    multiplied once per token. work: what every layer multiplies. experts: weights of those that are
    routed to.
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

    @property
    def bytes(self) -> int:
        """Of all numbers of the dense model."""
        return self.parameters * self.itemsize + self.extra_bytes

    def base(self, kind: str) -> int:
        """What the dense model has of that which a kind of budget counts: "params", "total" or
        "kv".
        """
        return {"params": self.decoder_linear, "total": self.parameters, "kv": self.kv_values}[kind]

    def multiply_adds(self, context: int) -> int:
        """Of one token with `context` tokens in the cache; half as many as FLOPs."""
        return flops_per_token(self.work, self.head_parameters, context) // 2


@dataclass(frozen=True, eq=False)
class RankPlan:
    """ranks {(layer, component): rank} and their exact account.

    requested: the share to remove. The temperatures are None where the policy reads none.
    against_uniform: what was measured before these ranks were given; None where nothing was.
    by_probes: whether the policy chose the ranks by the probes. latency: what the layers take,
    where the budget counts that.
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

    @property
    def summed_increase(self) -> float | None:
        """The predicted increases in loss of the slots alone, summed, nats/token; None unless the
        slots were probed.
        """
        if self.probes is None:
            return None
        curves = self.probes.curves
        return sum(curves[slot].loss(self.ranks[slot]) for slot in self.spectra)

    @property
    def predicted(self) -> Predicted | None:
        """Perplexity of the compressed model, on the test split of the calibration's text where it
        was measured what slots lose together (`Probes.interaction`). Else exp of the dense loss on
        the probing windows plus the sum, without low and high. None unless the slots were probed.
        """
        summed, probes = self.summed_increase, self.probes
        if probes is None or summed is None:
            return None
        if probes.interaction is not None:
            return probes.interaction.predict(summed, self.by_probes)
        return Predicted(perplexity(probes.dense_loss + summed))

    @property
    def dense_perplexity(self) -> float | None:
        """Of the dense model, on the text that `predicted` is for; None unless the slots were
        probed.
        """
        if self.probes is None:
            return None
        if self.probes.interaction is not None:
            return self.probes.interaction.predict(0.0).perplexity
        return perplexity(self.probes.dense_loss)

    @property
    def slot_ranks(self) -> tuple[SlotRank, ...]:
        """One entry per slot."""
        rows = []
        for slot, rank in self.ranks.items():
            s, item = self.spectra[slot], self.shape.itemsize
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
                    kv_bytes=s.cost.kv(rank) * item,
                    dense_kv_bytes=s.cost.kv_dense * item,
                    energy=s.energy(rank),
                )
            )
        return tuple(rows)

    def table(self) -> "pd.DataFrame":
        """One row per slot, with the fields of `SlotRank` as columns."""
        return frame([asdict(row) for row in self.slot_ranks])

    @property
    def _title(self) -> str:
        """Size and budget on one line."""
        own = self.account
        words = {
            "kv": "KV cache",
            "total": "parameters",
            "flops": "FLOPs per token",
            "latency": "decoder layers' time",
        }
        what = words.get(self.budget, "decoder parameters")
        return (
            f"{own.achieved:.1%} of the {what} removed: {own.model.parameters:,} parameters, "
            f"{own.model.kv_bytes_per_token:,} bytes of cache per token"
        )

    def __repr__(self) -> str:
        return f"RankPlan({len(self.ranks)} slots in {self.shape.layers} layers; {self._title})"

    def _repr_html_(self) -> str:
        """For notebooks: the ranks, a row per layer."""
        table = self.table()
        table["of"] = table["rank"].astype(str) + " of " + table["full"].astype(str)
        ranks = table.pivot(index="layer", columns="component", values="of")
        return html_table(self._title, ranks[list(table["component"].unique())])

    def figure(self) -> "Figure":
        """A plotly figure: the share of the full rank that every slot keeps, layers across."""
        return ranks_figure(self.table(), self._title)

    def kept_by_layer(self) -> list[float]:
        """Share of its parameters that each layer keeps, in layer order; of its cached numbers
        where the budget counts those.
        """
        kept, dense = [0] * self.shape.layers, [0] * self.shape.layers
        for (layer, component), rank in self.ranks.items():
            cost = self.spectra[layer, component].cost
            price = cost.kv if self.budget == "kv" else cost.parameters
            kept[layer] += price(rank)
            dense[layer] += price(cost.full)
        return [part / whole if whole else 1.0 for part, whole in zip(kept, dense, strict=True)]

    def work(self) -> list[LayerWork]:
        """What every layer multiplies with these ranks: the dense layer's, and the difference that
        each slot makes.
        """
        work = list(self.shape.work)
        for (layer, component), rank in self.ranks.items():
            cost, own = self.spectra[layer, component].cost, work[layer]
            if rank < cost.full:
                cached = cost.cached_products(rank) - cost.cached_dense
                saved = cost.products(cost.full) - cost.products(rank)
                work[layer] = LayerWork(own.weights - saved, own.cached + cached)
        return work

    def _flops(self, work: Sequence[LayerWork]) -> int:
        return flops_per_token(work, self.shape.head_parameters, self.seq_len)

    def _bytes(self) -> float:
        """What the model's numbers take, those of the slots as they will be stored."""
        costs = [(s.cost, self.ranks[slot]) for slot, s in self.spectra.items()]
        shape = self.shape
        dense = sum(cost.dense for cost, _ in costs) * shape.itemsize
        return shape.bytes - dense + sum(cost.bytes(rank, shape.itemsize) for cost, rank in costs)

    def _seconds_per_token(self, ranks: dict[Slot, int]) -> float | None:
        """Of the decoder layers with these ranks, the others full; None where not measured."""
        if self.latency is None:
            return None
        return self.latency.of(ranks, self.spectra) / self.latency.tokens

    @cached_property
    def account(self) -> SizeAndCost:
        """What the model will weigh and cost with these ranks, beside the dense one."""
        shape = self.shape
        costs = [(s.cost, self.ranks[slot]) for slot, s in self.spectra.items()]
        removed = sum(cost.dense - cost.parameters(rank) for cost, rank in costs)
        uncached = sum(cost.kv_dense - cost.kv(rank) for cost, rank in costs)
        energies = [s.energy(self.ranks[slot]) for slot, s in self.spectra.items()]
        check, predicted = self.against_uniform, self.predicted
        planned = Planned(
            self.requested,
            sum(energies) / len(energies),
            self.temperature,
            self.suggested_temperature,
            None if predicted is None else predicted.perplexity,
            None if predicted is None else predicted.low,
            None if predicted is None else predicted.high,
            None if self.probes is None else self.probes.held_out,
            None if check is None else check.divergence,
            None if check is None else check.uniform,
            None if check is None else check.hurts,
        )
        dense = ModelAccount(
            shape.parameters,
            shape.decoder_linear,
            shape.bytes,
            shape.kv_values * shape.itemsize,
            self._flops(shape.work),
            self._seconds_per_token({}),
        )
        own = ModelAccount(
            shape.parameters - removed,
            shape.decoder_linear - removed,
            self._bytes(),
            (shape.kv_values - uncached) * shape.itemsize,
            self._flops(self.work()),
            self._seconds_per_token(self.ranks),
        )
        return SizeAndCost(own, dense, self.budget, planned)

    def summary(self) -> dict[str, Any]:
        """The account in one row, JSON-able; see `SizeAndCost.to_dict`."""
        return self.account.to_dict()
