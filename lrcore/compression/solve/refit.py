"""Sequential residual-corrected refit, a method of this project and of no paper.

Each layer compensates for the errors of the layers before it. With the compressed layers before it
in place, the projections of a layer are solved again in forward order: q, k and v (or the input
projections of a mixer), o, gate and up, down. With x^ the input of a projection in the compressed
model,

    min over W, b of E w |y - (W x^ + b)|^2 + RIDGE * |(W - W_0) diag(E[w x^ x^^T])^{1/2}|^2,

W_0 the closed-form weights of the method. For the output and down projections, y brings the
residual stream as near as possible to that of the dense model: the dense stream after the component
minus the compressed stream before it. For the other projections, y is the output for the dense
model's input, W_0 x + b_0. Of a low-rank pair the up factor is solved, or both factors: see
`refit_pairs`.

In a layer that was found by structure, the matrices are solved in the order in which it runs them.
The matrices that write to the residual stream take the part of the output projection, and y is the
dense output for the others.

w weights the tokens for the output and down projections. The readers of the stream normalize it
first, so an error counts relative to the size of the stream: w is the inverse mean square of the
dense stream after the component, relative to the median. The inputs of the other projections are
normalized: all tokens count 1.

Only second and cross moments of x^ and y are stored. A projection without a bias gets none, so the
number of parameters is as planned.

The first token of a window attends only to itself, and many models give it activations that are
hundreds of times larger than all others, which each later token relies on (Sun et al. 2024,
"Massive Activations in Large Language Models"). Each calibration window has a single such token.
The regression would overfit these few tokens, and the model would lose the large activations on
other texts. Therefore tokens of the calibration windows are added to the regression a second time,
each as the first token of a separate window.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...layers.layer import MIXER_INPUTS, Layer, Linear, LowRank, Projection
from ...layers.statistics import is_finite
from ...models.architectures import architecture_of, decoder_layers
from ...models.inferred_layers import run_order, stream_before, stream_factors
from ...models.layers import read_exact, write_layer
from ...models.offload import present
from ...models.stream import LayerActivations, LayerStream, residual_without, stream_after_attention
from ...system.errors import InputError
from .quantized_layer import Quantizer
from .refit_codes import refit_codes, sharing_dictionary, stacked
from .refit_pairs import can_refit_pair, pairs_key, refit_pair
from .regression import (
    MAX_TOKEN_WEIGHT,
    RIDGE,
    Readers,
    Regression,
    ResidualTargets,
    can_refit,
    mean_squares,
    refit_projection,
    token_weights,
)
from .trained_layer import LayerTraining, TrainingBatch, training_key

T = TypeVar("T")

REVISION = 3  # part of `refit_key`: raise it if a refit results in other weights
NO_BITS: Mapping[str, int] = {}
# Projections that read the same input, by a projection that names the group.
READ_BY = {"q": ("q", "k", "v"), "in": MIXER_INPUTS, "up": ("gate", "up")}
# Bytes of activations that are cached between the projections of a layer. Activations that exceed
# them are computed again.
MAX_CACHED_BYTES = 2**30
# One calibration token in TOKENS_PER_FIRST is added as a first token; FIRST_BATCH run at once.
TOKENS_PER_FIRST, FIRST_BATCH = 16, 1024


@dataclass(frozen=True, eq=False)
class Streams:
    """The same windows in the dense and in the compressed model, at the input of a layer."""

    dense: LayerStream
    small: LayerStream


Batch = tuple[Streams, int]  # one batch of the windows of a stream


def refit_key(train: bool = False) -> tuple[float | int, ...]:
    """Return the constants that a refit depends on, for the keys of cached refit models.

    train: whether it trains the layers.
    """
    return (
        REVISION,
        RIDGE,
        MAX_TOKEN_WEIGHT,
        TOKENS_PER_FIRST,
        *pairs_key(),
        *(training_key() if train else ()),
    )


def with_first_tokens(streams: Streams, tokens: Tensor) -> tuple[Streams, ...]:
    """Return the streams of calibration windows [n, t], at their beginning, and of first tokens.

    Layers that were found by structure get at most n first tokens, in batches of as many windows:
    some of them pad each window to a chunk of up to 256 tokens.
    """
    firsts, batch = first_tokens(tokens), FIRST_BATCH
    if architecture_of(streams.small.network).is_inferred:
        firsts, batch = firsts[: len(tokens)], streams.small.batch
    dense, small = (
        LayerStream(stream.network, firsts, batch) for stream in (streams.dense, streams.small)
    )
    return streams, Streams(dense, small)


def first_tokens(tokens: Tensor) -> Tensor:
    """Return windows [m, 1] of random tokens from windows tokens [n, t], with a fixed seed.

    m = n t / TOKENS_PER_FIRST, at least 1.
    """
    flat = tokens.flatten()
    order = torch.randperm(len(flat), generator=torch.Generator().manual_seed(0))
    return flat[order[: max(1, len(flat) // TOKENS_PER_FIRST)]].unsqueeze(1)


def refit_layer(
    network: PreTrainedModel,
    index: int,
    streams: Sequence[Streams],
    training: LayerTraining | None = None,
    bits: Mapping[str, int] = NO_BITS,
) -> None:
    """Refit the projections of layer `index` of the compressed network, then advance the streams.

    training: train the whole layer at the end. bits: of projections that are quantized as soon as
    they are refit, so that the later ones make up for it; not with a training. The streams must be
    at the layer; `network` is the network of the small streams. Raises InputError if activations of
    the compressed network are not finite.
    """
    dense = streams[0].dense.network
    with present(decoder_layers(network)[index]), present(decoder_layers(dense)[index]):
        _LayerRefit(network, index, streams, training, Quantizer(bits)).run()


class _LayerRefit:
    """The refit of a layer, with all streams at the input.

    attended: inputs of the output projection of the compressed layer. activations: activations of
    the compressed layer after its output projection was refit. Both are cached because each would
    otherwise be computed several times per batch.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        index: int,
        streams: Sequence[Streams],
        training: LayerTraining | None,
        quantizer: Quantizer,
    ) -> None:
        self.network, self.index, self.training = network, index, training
        self.quantizer = quantizer
        self.batches = [
            (pair, number) for pair in streams for number in range(len(pair.small.hidden))
        ]
        self.all_streams, self.layer = streams, decoder_layers(network)[index]
        self.dense = streams[0].dense.network
        self.attended: _BatchCache[Tensor] = _BatchCache()
        self.activations: _BatchCache[LayerActivations] = _BatchCache()

    @cached_property
    def dense_projections(self) -> Mapping[str, Projection]:
        """The projections of the dense layer, by name."""
        return read_exact(self.dense, self.index).matrices()

    def run(self) -> None:
        """Refit the projections in forward order, and advance the streams."""
        is_inferred = architecture_of(self.network).is_inferred
        if is_inferred:
            self._refit_inferred()
        else:
            self._refit_readers(READ_BY["q"], None)
            self._refit_readers(READ_BY["in"], None)
            inputs = self._refit_output()
            if inputs:
                self._refit_readers(READ_BY["up"], inputs)
                self._refit_down(inputs)
        if self.training is not None:
            self.training.train(self.network, self.index, self._training_batches())
        if is_inferred or self.training is not None:
            for streams in self.all_streams:
                streams.small.run(self.index)
            return
        for batch in self.batches:
            activations = self.activations.get(batch) or self._run_layer(batch)
            batch[0].small.advance(self.index, batch[1], activations)

    def _refit_inferred(self) -> None:
        """Refit the matrices of a layer that was found by structure; advance the dense streams."""
        dense = self.batches[0][0].dense
        factors = stream_factors(dense, self.index)
        for names in run_order(dense, self.index):
            self._refit_readers([name for name in names if name not in factors], None)
            for name in names:
                if name in factors:
                    self._refit_writer(name, factors)
        for streams in self.all_streams:
            streams.dense.run(self.index)

    def _refit_writer(self, name: str, factors: Mapping[str, float]) -> None:
        """Refit a matrix that writes to the residual stream; factors: see `stream_factors`."""
        fit, factor = ResidualTargets(self.network, self.layer, "attention"), factors[name]
        module = decoder_layers(self.dense)[self.index].get_submodule(name)
        for streams, number in self.batches:
            x, before = stream_before(streams.small, self.index, number, name, factors)
            dense_x, after = stream_before(streams.dense, self.index, number, name, factors)
            after += factor * module(dense_x).view_as(after)
            fit.add(x, after / factor, before / factor, None)
        self._install(name, fit.sums)

    def _training_batches(self) -> list[TrainingBatch]:
        """Return the batches to train on; the dense streams have passed the layer."""
        median = mean_squares(self.batches[0][0].dense.hidden[0]).median()
        return [
            TrainingBatch(
                streams.small.hidden[number],
                streams.small.call(self.index, number),
                streams.dense.hidden[number],
                token_weights(mean_squares(streams.dense.hidden[number]), median),
            )
            for streams, number in self.batches
        ]

    def _run_layer(self, batch: Batch) -> LayerActivations:
        """Run the compressed layer on a batch, from the cached input of its output projection."""
        streams, number = batch
        return streams.small.activations(self.index, number, self.attended.get(batch))

    def _refit_readers(self, names: Sequence[str], inputs: Sequence[Tensor] | None) -> None:
        """Refit projections with a common input, of those that the layer has.

        inputs: the inputs of the dense layer, in batches; computed if None.
        """
        layer = read_exact(self.network, self.index)
        matrices = layer.matrices()
        changing = [
            name
            for name in names
            if name in matrices and (can_refit(matrices[name]) or name in self.quantizer.bits)
        ]
        groups = sharing_dictionary(layer, names)
        if not changing and not groups:
            return
        tap = changing[0] if changing else next(iter(groups[0]))
        fit = Regression()  # of the dense input on the compressed input of these projections
        for position, batch in enumerate(self.batches):
            streams, number = batch
            x = streams.small.input_of(self.index, number, tap, self.attended.get(batch))
            if inputs:
                dense_x = inputs[position]
            else:
                dense_x = streams.dense.input_of(self.index, number, tap)
            fit.add(x, dense_x)
        self._check(fit)
        readers = Readers(fit)
        refit = {name: self._refit_reader(layer, name, readers) for name in changing}
        for group in groups:
            old = stacked([self.dense_projections[name] for name in group])
            refit |= refit_codes(group, fit.through(old), old.weight)
        self._write(layer, refit, fit)

    def _write(self, layer: Layer, refit: Mapping[str, Projection], fit: Regression) -> None:
        """Write projections with a common input, in their bits; fit: the sums over this input."""
        moment = fit.seconds() / fit.count
        changed = {name: self.quantizer.quantize(name, p, moment) for name, p in refit.items()}
        write_layer(self.network, layer.with_matrices(**changed))

    def _refit_output(self) -> list[Tensor]:
        """Refit the output projection and advance the dense streams.

        Returns the dense inputs of the MLP, in batches; empty if the layer has no MLP.
        """
        fit, inputs = ResidualTargets(self.network, self.layer, "attention"), []
        for batch in self.batches:
            streams, number = batch
            dense = streams.dense.activations(self.index, number)
            if dense.o_out is not None:
                x = streams.small.input_of(self.index, number, "o")
                self.attended.add(batch, x, x.nbytes)
                after = self._after_attention(streams.dense.hidden[number], dense.o_out)
                before = residual_without(self.layer, "attention", streams.small.hidden[number])
                fit.add(x, after, before, dense.o_out)
            streams.dense.hidden[number] = dense.out
            if dense.up_in is not None:
                inputs.append(dense.up_in)
        if "o" in self.dense_projections:
            self._install("o", fit.sums)
        return inputs

    def _after_attention(self, hidden: Tensor, out: Tensor | None) -> Tensor:
        """Return the residual stream between attention and MLP, see `stream_after_attention`."""
        return stream_after_attention(self.network, self.layer, hidden, out)

    def _refit_down(self, inputs: Sequence[Tensor]) -> None:
        """Refit the down projection; the dense streams have passed the layer.

        inputs: of the dense MLP, in batches.
        """
        fit = ResidualTargets(self.network, self.layer, "mlp")
        for x, batch in zip(inputs, self.batches, strict=True):
            streams, number = batch
            small, after = self._run_layer(batch), streams.dense.hidden[number]
            assert small.down_in is not None  # the dense layer has an MLP
            if self.training is None:  # else the layer runs again after the training
                attended = 0 if small.o_out is None else small.o_out.nbytes
                size = small.down_in.nbytes + attended + small.out.nbytes
                self.activations.add(batch, small, size)
            middle = self._after_attention(streams.small.hidden[number], small.o_out)
            before = residual_without(self.layer, "mlp", middle)
            dense_out = self._dense_mlp(x) if fit.is_normed else None
            fit.add(small.down_in, after, before, dense_out)
        self._install("down", fit.sums)

    @torch.inference_mode()
    def _dense_mlp(self, x: Tensor) -> Tensor:
        """Return the output of the dense MLP."""
        layer = decoder_layers(self.dense)[self.index]
        out: Tensor = layer.get_submodule(architecture_of(self.network).mlp)(x)
        return out

    def _check(self, fit: Regression) -> None:
        """Raise InputError if the sums of a regression are not finite."""
        if not (is_finite(fit.x) and is_finite(fit.y)):
            raise InputError(
                f"The activations of the compressed model are not finite in layer {self.index}, so "
                "it cannot be refit. In float16 they overflow above 65,504: use dtype bfloat16 or "
                "float32. With any dtype, use a lower ratio."
            )

    def _install(self, name: str, fit: Regression) -> None:
        """Refit the output or down projection and write it."""
        self._check(fit)
        layer = read_exact(self.network, self.index)
        projection, pair = layer.matrices()[name], self._pair(layer, name)
        in_codes = sharing_dictionary(layer, [name])
        refit: Mapping[str, Projection]
        if in_codes:
            refit = refit_codes(in_codes[0], fit, self.dense_projections[name].weight)
        elif pair is None:
            refit = {name: refit_projection(projection, fit)}
        else:
            refit = {name: refit_pair(pair, fit, self.dense_projections[name])}
        self._write(layer, refit, fit)

    def _refit_reader(self, layer: Layer, name: str, readers: Readers) -> Projection:
        """Return a projection that reads the stream, refit on the output for dense inputs.

        If both factors of a pair are solved, the target is the output of the dense projection.
        """
        projection, pair = layer.matrices()[name], self._pair(layer, name)
        if not can_refit(projection):
            return projection
        if isinstance(projection, Linear):
            return readers.refit(projection)
        if pair is None:
            return refit_projection(projection, readers.fit.through(projection))
        dense = self.dense_projections[name]
        return refit_pair(pair, readers.fit.through(dense), dense)

    def _pair(self, layer: Layer, name: str) -> LowRank | None:
        """Return the pair of a projection if both factors can be solved."""
        projection, dense = layer.matrices()[name], self.dense_projections.get(name)
        if not isinstance(projection, LowRank) or dense is None:
            return None
        return projection if can_refit_pair(layer, name, dense) else None


class _BatchCache(Generic[T]):
    """Values of batches, up to MAX_CACHED_BYTES."""

    def __init__(self) -> None:
        self._values: dict[Batch, T] = {}
        self._free_bytes = MAX_CACHED_BYTES

    def add(self, batch: Batch, value: T, size: int) -> None:
        """Store the value of a batch if it fits."""
        if size <= self._free_bytes:
            self._values[batch] = value
            self._free_bytes -= size

    def get(self, batch: Batch) -> T | None:
        """Return the value of a batch, or None."""
        return self._values.get(batch)
