"""The matrices of a layer as low-rank pairs, in the metric of their centred inputs: a form that
`fused` has beside narrowed heads and removed neurons.

Pairs are LatentLLM's (queries with keys by `latentllm/joint.py`, the other matrices each on its own
by `latentllm/local.py`), with the block identity in A: heads, neurons and the KV cache keep their
shapes. What is lost of an input's mean goes into the bias; a projection without one gets one.
"""

from torch import Tensor

from ..layer import Layer, Linear
from ..statistics import TAPS, Moments
from .factors import LayerFactors
from .latentllm import DEFAULT
from .latentllm.joint import joint_qk
from .latentllm.local import stacked

JUNCTION = "right_identity"  # leaves `up` whole, which a refit solves again


def pairs(layer: Layer, moments: Moments) -> LayerFactors:
    """Slots joint_qk (q and k where they are normalised), v, o and those of the MLP, as far as the
    layer has them as plain matrices.
    """
    plain = {name for name, one in layer.matrices().items() if isinstance(one, Linear)}

    def metric(name: str) -> tuple[Tensor, Tensor]:
        return moments.centred(TAPS[name]), moments.mean(TAPS[name])

    def each(*names: str) -> LayerFactors:
        own = [name for name in names if name in plain]
        return {name: stacked(layer, (name,), *metric(name), JUNCTION) for name in own}

    joint = layer.attention.qk_norm is None and {"q", "k"} <= plain
    qk = (
        {"joint_qk": joint_qk(layer.attention, *metric("q"), JUNCTION, DEFAULT.window)}
        if joint
        else each("q", "k")
    )
    return qk | each("q_a", "q_b", "kv_a", "kv_b", "v", "o", "gate", "up", "down")
