"""The matrices of a layer as low-rank pairs, in the metric of their centred inputs: a form that
`fused` has beside narrowed heads and removed neurons.

Pairs are LatentLLM's (queries with keys by `latentllm/joint.py`, the other matrices each on its own
by `latentllm/local.py`), with the block identity in A: heads, neurons and the KV cache keep their
shapes. What is lost of an input's mean goes into the bias; a projection without one gets one.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from ..layer import Layer, Linear
from ..statistics import TAPS, Moments
from .factors import Factor
from .latentllm import DEFAULT
from .latentllm.joint import joint_qk
from .latentllm.local import stacked

JUNCTION = "right_identity"  # leaves `up` whole, which a refit solves again


def pairs(layer: Layer, moments: Moments) -> dict[str, Callable[[], Factor]]:
    """What solves each of the slots joint_qk (q and k where they are normalised), v, o and those of
    the MLP, as far as the layer has them as plain matrices.
    """
    plain = {name for name, one in layer.matrices().items() if isinstance(one, Linear)}
    joint = layer.attention.qk_norm is None and {"q", "k"} <= plain

    def metric(name: str) -> tuple[Tensor, Tensor]:
        return moments.centred(TAPS[name]), moments.mean(TAPS[name])

    def solve(name: str) -> Factor:
        if name == "joint_qk":
            return joint_qk(layer.attention, *metric("q"), JUNCTION, DEFAULT.window)
        return stacked(layer, (name,), *metric(name), JUNCTION)

    queries = ["joint_qk"] if joint else [name for name in ("q", "k") if name in plain]
    others = ("q_a", "q_b", "kv_a", "kv_b", "v", "o", "gate", "up", "down")
    own = queries + [name for name in others if name in plain]
    return {name: partial(solve, name) for name in own}
