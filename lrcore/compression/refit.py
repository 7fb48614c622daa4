"""Sequential residual-corrected refit: each layer compensates for the losses of the layers before
it. Ours; in no paper.

With the compressed layers before it in place, the projections of a layer are solved again, in the
order in which it runs them: q, k and v, o, gate and up, down. With x^ the input of a projection in
the compressed model,

    min over W, b of E w |y - (W x^ + b)|^2 + RIDGE * |(W - W_0) diag(E[w x^ x^^T])^{1/2}|^2,

W_0 the closed-form weights of the method. y of the output and down projections is what brings the
residual stream as near as possible to that of the dense model: the dense stream after them less the
compressed one before. y of the others is what the projection gives for the dense model's input,
W_0 x + b_0. Of a low-rank pair that is the up factor, or both: see `pairs`.

w weighs the tokens for the output and down projections. What reads the stream norms it first, so an
error counts beside the size of the stream: w is one over the mean square of the dense stream after
the component, beside its median. The inputs of the other projections are normed: all tokens count
as one.

Only second and cross moments of x^ and y are kept. A projection without a bias gets none here, so
the parameters stay as planned.

The first token of a window attends to itself alone, and many models give it activations that are
hundreds of times larger than all others, which every later token relies on (Sun et al. 2024,
"Massive Activations in Large Language Models"). The calibration windows hold one such token each:
so few are fitted one by one, and those of another text lose what is large. Tokens of the
calibration windows join the regression once more, each as the first token of a window of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError
from ..layer import Layer, Linear, LowRank, Projection
from ..models.architectures import architecture_of, decoder_layers
from ..models.layers import read_exact, read_layer, write_layer
from ..models.offload import present
from ..models.stream import LayerStream, Look, added, along
from ..statistics import is_finite
from .pairs import can_resolve, pairs_key, resolved
from .regression import RIDGE, Readers, Regression, is_free, solved
from .trained_mlp import Seen, can_train, trained_mlp, training_key
from .wanted import LIGHT, Wanted

Of = TypeVar("Of")

# Part of what `refit_key` gives: raise it where a refit gives other weights than before.
REVISION = 3
# The projections that read one input, by the first of them.
READ_BY = {"q": ("q", "k", "v"), "up": ("gate", "up")}
# Bytes of activations that are kept between the projections of a layer; what is beyond them is
# computed again.
KEPT = 2**30
# Of how many calibration tokens one joins as a first token; how many of these run at once.
PER_FIRST, FIRST_BATCH = 16, 1024


@dataclass(frozen=True, eq=False)
class Streams:
    """The same windows in the dense and in the compressed model, at the input of one layer."""

    dense: LayerStream
    small: LayerStream


Batch = tuple[Streams, int]  # one batch of the windows of a stream


def refit_key(train: bool = False) -> tuple[float | int, ...]:
    """What a refit depends on besides its model, recipe and windows: part of the key of whatever
    is kept of a refit model. train: see `refit_layer`.
    """
    return REVISION, RIDGE, LIGHT, PER_FIRST, *pairs_key(), *(training_key() if train else ())


def with_first_tokens(streams: Streams, tokens: Tensor) -> tuple[Streams, ...]:
    """The streams of the calibration windows tokens [n, t], at their beginning, and those of
    windows of one token.
    """
    firsts = first_tokens(tokens)
    dense, small = (
        LayerStream(one.network, firsts, FIRST_BATCH) for one in (streams.dense, streams.small)
    )
    return streams, Streams(dense, small)


def first_tokens(tokens: Tensor) -> Tensor:
    """Windows [m, 1] of tokens drawn from windows tokens [n, t], m = n t / PER_FIRST, at least 1;
    always the same ones.
    """
    every = tokens.flatten()
    drawn = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))
    return every[drawn[: max(1, len(every) // PER_FIRST)]].unsqueeze(1)


def refit_layer(
    network: PreTrainedModel, index: int, streams: Sequence[Streams], train: bool = False
) -> None:
    """Refit the projections of layer `index` of the compressed network on the windows of all
    streams, then advance them beyond the layer. train: train its MLP at the end, as far as
    `can_train` says.

    The streams have reached the layer; `network` is the one that the small ones run. Raises
    InputError where activations of the compressed network are not finite.
    """
    dense = streams[0].dense.network
    with present(decoder_layers(network)[index]), present(decoder_layers(dense)[index]):
        _Fitting(network, index, streams, train).run()


class _Fitting:
    """One layer, at which all streams are.

    What is before the output projection of the compressed layer is computed once, and so is what is
    between it and the down projection.
    """

    def __init__(
        self, network: PreTrainedModel, index: int, streams: Sequence[Streams], train: bool
    ) -> None:
        self.network, self.index, self.train = network, index, train
        self.batches = [(one, number) for one in streams for number in range(len(one.small.hidden))]
        self.layer = decoder_layers(network)[index]
        self.dense = streams[0].dense.network
        self.attended: _Kept[Tensor] = _Kept()  # inputs of the compressed output projection
        self.looks: _Kept[Look] = _Kept()

    @cached_property
    def whole(self) -> Mapping[str, Projection]:
        """The projections of the dense layer, by name."""
        return read_exact(self.dense, self.index).matrices()

    def run(self) -> None:
        """Refit, in forward order, and advance."""
        self._readers("q", None)
        inputs = self._output()
        if inputs:
            self._readers("up", inputs)
            self._down(inputs)
        for batch in self.batches:
            look = self.looks.get(batch) or self._look(batch)
            batch[0].small.advance(self.index, batch[1], look)

    def _look(self, batch: Batch) -> Look:
        both, number = batch
        return both.small.look(self.index, number, self.attended.get(batch))

    def _readers(self, first: str, inputs: Sequence[Tensor] | None) -> None:
        """Refit the projections that read what `first` ("q", "up") reads; inputs: theirs in the
        dense layer, batch by batch, None where they are to be computed.
        """
        layer = read_exact(self.network, self.index)
        matrices = layer.matrices()
        own = {name: matrices[name] for name in READ_BY[first] if name in matrices}
        own = {name: one for name, one in own.items() if is_free(one)}
        if not own or first not in matrices:
            return
        run_first = next(name for name in READ_BY[first] if name in matrices)
        fit = Regression()  # of the dense input on the compressed one, which they share
        for place, batch in enumerate(self.batches):
            both, number = batch
            there = both.small.look_before(self.index, number, run_first, self.attended.get(batch))
            x = inputs[place] if inputs else both.dense.look_before(self.index, number, run_first)
            fit.add(there, x)
        self._check(fit)
        readers = Readers(fit)
        refit = {name: self._reader(layer, name, readers) for name in own}
        write_layer(self.network, layer.with_matrices(**refit))

    def _output(self) -> list[Tensor]:
        """Refit the output projection; the dense streams go beyond the layer. The dense inputs of
        the MLP, batch by batch; none where the layer has none of its own.
        """
        fit, inputs = Wanted(self.network, self.layer, "attention"), []
        for batch in self.batches:
            both, number = batch
            then, hidden = both.dense.look(self.index, number), both.dense.hidden[number]
            x = both.small.look_before(self.index, number, "o")
            self.attended.add(batch, x, x.nbytes)
            after = along(self.layer, "attention", hidden) + self._added("attention", then.o_out)
            before = along(self.layer, "attention", both.small.hidden[number])
            fit.add(x, after, before, then.o_out)
            both.dense.hidden[number] = then.out
            if then.up_in is not None:
                inputs.append(then.up_in)
        self._install("o", fit.sums)
        return inputs

    def _added(self, component: str, out: Tensor) -> Tensor:
        return added(self.network, self.layer, component, out)

    def _down(self, inputs: Sequence[Tensor]) -> None:
        """Refit the down projection, the dense streams being beyond the layer. inputs: of the dense
        MLP, batch by batch.
        """
        fit = Wanted(self.network, self.layer, "mlp")
        train = self.train and can_train(read_layer(self.network, self.index).mlp)
        total = sum(one.dense.hidden[number][..., 0].numel() for one, number in self.batches)
        seen: list[Seen] = []
        for x, batch in zip(inputs, self.batches, strict=True):
            both, number = batch
            now, after = self._look(batch), both.dense.hidden[number]
            assert now.down_in is not None  # the dense layer has one, too
            size = now.down_in.nbytes + now.o_out.nbytes + now.out.nbytes
            self.looks.add(batch, now, size)
            stream = along(self.layer, "attention", both.small.hidden[number])
            before = along(self.layer, "mlp", stream) + along(
                self.layer, "mlp", self._added("attention", now.o_out)
            )
            own = self._given(x) if fit.normed else None
            wanted, weights = fit.add(now.down_in, after, before, own)
            if train and now.up_in is not None:
                seen.append(Seen.of(now.up_in, wanted, weights, total))
        self._install("down", fit.sums)
        if seen:
            layer = read_layer(self.network, self.index)
            assert layer.mlp is not None  # as can_train says
            write_layer(self.network, replace(layer, mlp=trained_mlp(layer.mlp, seen)))
            self.looks = _Kept()  # what is before the down projection is another one

    @torch.inference_mode()
    def _given(self, x: Tensor) -> Tensor:
        """What the dense MLP gives for its input."""
        layer = decoder_layers(self.dense)[self.index]
        given: Tensor = layer.get_submodule(architecture_of(self.network).mlp)(x)
        return given

    def _check(self, fit: Regression) -> None:
        """Raises InputError where what a regression has seen is not finite."""
        if not (is_finite(fit.x) and is_finite(fit.y)):
            raise InputError(
                f"The activations of the compressed model are not finite in layer {self.index}, so "
                "it cannot be refit. In float16 they overflow above 65,504: use dtype bfloat16 or "
                "float32. In any dtype, remove less."
            )

    def _install(self, name: str, fit: Regression) -> None:
        """Refit the output or down projection."""
        self._check(fit)
        layer = read_exact(self.network, self.index)
        own, pair = layer.matrices()[name], self._pair(layer, name)
        found = solved(own, fit) if pair is None else resolved(pair, fit, self.whole[name])
        write_layer(self.network, layer.with_matrices(**{name: found}))

    def _reader(self, layer: Layer, name: str, readers: Readers) -> Projection:
        """A projection that reads the stream, refit on what it gives for the dense model's input;
        both factors of a pair, on what the dense projection gives.
        """
        own, pair = layer.matrices()[name], self._pair(layer, name)
        if isinstance(own, Linear):
            return readers.refit(own)
        if pair is None:
            return solved(own, readers.fit.through(own))
        return resolved(pair, readers.fit.through(self.whole[name]), self.whole[name])

    def _pair(self, layer: Layer, name: str) -> LowRank | None:
        """The pair of a projection where both factors can be solved again."""
        own = layer.matrices()[name]
        if not isinstance(own, LowRank) or name not in self.whole:
            return None
        return own if can_resolve(layer, name, self.whole[name]) else None


class _Kept(Generic[Of]):
    """What batches gave, as far as KEPT bytes hold it."""

    def __init__(self) -> None:
        self._own: dict[Batch, Of] = {}
        self._left = KEPT

    def add(self, batch: Batch, value: Of, size: int) -> None:
        """Keep the value of a batch if its bytes have room."""
        if size <= self._left:
            self._own[batch] = value
            self._left -= size

    def get(self, batch: Batch) -> Of | None:
        """The value of a batch where it was kept."""
        return self._own.get(batch)
