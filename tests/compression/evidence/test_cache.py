"""Cache keys of measurements, which must not change between versions."""

from types import SimpleNamespace

import torch

from lrcore.compression.evidence import layer_probes, search
from lrcore.compression.evidence.kind import cache_file
from lrcore.compression.solve.allocate import allocation_key
from lrcore.methods import find_method
from lrcore.recipes.recipe import Recipe
from lrcore.system.files import cache_folder


def test_cache_keys_of_measurements_are_stable() -> None:
    spectrum = SimpleNamespace(cost=SimpleNamespace(full=8))
    factors = SimpleNamespace(
        calibration=SimpleNamespace(key="0123abcd"),
        method="svd",
        options=find_method("svd").choose({}),
        shape=SimpleNamespace(head_parameters=512),
        spectra={(1, "q"): spectrum, (0, "down"): spectrum},
    )
    probed = layer_probes.probe_key(factors, torch.tensor([[3, 1], [4, 1]]))
    path = cache_file("probes", factors, *probed, 5)
    assert path == cache_folder() / "probes" / "9a5b8d24c34a5cffc16f8d01.json"
    budget = allocation_key(Recipe(policy="mix"))
    sizes = (search.STEP, search.ROUNDS, search.WINDOWS, search.LENGTH)
    assert cache_file("searches", factors, budget, *sizes).name == "c76c8bdcdb6c0f9c542ed41a.json"
