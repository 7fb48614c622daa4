"""Shared parts of the LatentLLM tests: kinds of toy layers, scores by brute force, and the
published algorithm on `d x d` matrices.
"""

import torch
from toy_layer import apply

from lrcore.layers.layer import heads
from lrcore.layers.linalg import eigh_descending
from lrcore.methods.latentllm import hosvd

NAMES = ["q", "k", "v", "o", "gate", "up", "down"]
MHA, GQA = (3, 3, "none", False, True), (4, 2, "none", False, True)
PLAIN = [(3, 3, "none", True, False), (3, 3, "none", False, False)]


def states(layer, x, name: str, index: int):
    a = layer.attention
    count = a.n_q if name == "q" else a.n_kv
    return apply(getattr(a, name), x).unflatten(-1, (count, -1))[:, index]


def scores(layer, x, i: int):
    """Return q_i . k over all pairs of tokens, before rotary embeddings."""
    return states(layer, x, "q", i) @ states(layer, x, "k", i // layer.attention.group).T


def literal_algorithm_1(a, root, left_rank: int, right_rank: int, rounds: int = 8):
    """Run algorithm 1 line by line on `d x d` matrices; return A_q, A_k and the list of losses."""
    g = [
        root @ wq.T @ heads(a.k.weight, a.n_kv)[i // a.group] @ root
        for i, wq in enumerate(heads(a.q.weight, a.n_q))
    ]

    def top(m, rank):
        return torch.linalg.eigh(m)[1].flip(1)[:, :rank].T

    aq, losses = top(sum(m @ m.T for m in g), left_rank), []
    for _ in range(rounds):
        ak = top(sum(m.T @ aq.T @ aq @ m for m in g), right_rank)
        aq = top(sum(m @ ak.T @ ak @ m.T for m in g), left_rank)
        losses.append(float(sum(((m - aq.T @ aq @ m @ ak.T @ ak) ** 2).sum() for m in g)))
    return aq, ak, losses


def exact_alternation(p, left_rank: int, right_rank: int, rounds: int = 8, enough: float = 1e-6):
    """Run `hosvd.alternate` with complete eigendecompositions in each round."""
    left, retained = torch.eye(p.left_side.full, left_rank, dtype=p.left_side.lift.dtype), 0.0
    for _ in range(rounds):
        right_gram = hosvd._right_gram(p.left_side, p.right_side, p.rotations, left)
        right = eigh_descending(right_gram)[1][:, :right_rank]
        values, vectors = eigh_descending(
            hosvd._left_gram(p.left_side, p.right_side, p.rotations, right)
        )
        left, before, retained = vectors[:, :left_rank], retained, float(values[:left_rank].sum())
        if retained - before <= enough * float(values[left_rank:].sum()):
            break
    return left, right
