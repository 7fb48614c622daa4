"""A network that another thread makes, in 16 bits, changes torch's default type for all threads."""

import torch

import lrcore


def test_the_programme_of_duo_svd_gives_the_same_ranks_meanwhile() -> None:
    model = lrcore.load("demo-llama")
    recipe = lrcore.Recipe(method="a3", policy="duo_svd", ratio=0.3)
    factors = lrcore.prepare(model, recipe)
    ranks = lrcore.allocate(factors, recipe).ranks
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert lrcore.allocate(factors, recipe).ranks == ranks
    finally:
        torch.set_default_dtype(torch.float32)
