"""Measurements that are on disk are found again: their keys stay the same."""

from types import SimpleNamespace

import torch

from lrcore.compression.allocate import allocation_key
from lrcore.compression.evidence import probing, search
from lrcore.compression.evidence.cache import cache_file
from lrcore.files import cache_folder
from lrcore.methods import find_method
from lrcore.recipe import Recipe


def test_keys_of_measurements_stay_what_they_were() -> None:
    spectrum = SimpleNamespace(cost=SimpleNamespace(full=8))
    factors = SimpleNamespace(
        calibration=SimpleNamespace(key="0123abcd"),
        method="svd",
        options=find_method("svd").choose({}),
        spectra={(1, "q"): spectrum, (0, "down"): spectrum},
    )
    kept = cache_file("probes", factors, *probing.key(torch.tensor([[3, 1], [4, 1]])), 5)
    assert kept == cache_folder() / "probes" / "9a5b8d24c34a5cffc16f8d01.json"
    budget = allocation_key(Recipe(policy="mix"))
    sizes = (search.STEP, search.ROUNDS, search.WINDOWS, search.LENGTH)
    assert cache_file("searches", factors, budget, *sizes).name == "c76c8bdcdb6c0f9c542ed41a.json"
