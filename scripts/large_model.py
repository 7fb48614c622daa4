"""The page with the spectra of a model larger than the machine:
`python scripts/large_model.py --port 7860`.

80 layers with the shapes of a 70-billion-parameter Llama (8192 wide, 64 query and 8 key-value heads
of 128, 28672 neurons). The singular values are made up: what is looked at is how the page copes
with their number. Nothing can be compressed there.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import lrcore
from lrcore.account import LayerWork
from lrcore.analyse import Analysis
from lrcore.calibration.calibrate import Calibration
from lrcore.compression.factorise import Factorisation
from lrcore.evidence import Evidence
from lrcore.plan import Shape
from lrcore.spectra import Cost, Spectrum
from workbench.app import LAUNCH, build_app
from workbench.jobs import KINDS
from workbench.keys import calibration_key, factor_key
from workbench.store import Store

LAYERS, WIDE, QUERY, KV, HEAD, NEURONS = 80, 8192, 64, 8, 128, 28672
HEADS = {"qk": (QUERY, HEAD), "ov": (QUERY, HEAD)}
ONE = {
    "mlp": NEURONS,
    "q": WIDE,
    "k": KV * HEAD,
    "v": KV * HEAD,
    "o": WIDE,
    "gate": WIDE,
    "up": WIDE,
    "down": WIDE,
}
INFLUENCE = [0.05 + 0.002 * layer for layer in range(LAYERS)]


class Influenced(Calibration):
    """A calibration of which nothing is kept but the influences."""

    @property
    def influence(self) -> dict[str, list[float]]:
        return dict.fromkeys(("block", "attention", "mlp"), INFLUENCE)


def values(count: int, layer: int) -> torch.Tensor:
    """A power law that is steeper in later layers. [count], float64, descending"""
    return torch.arange(1, count + 1, dtype=torch.float64) ** -(0.4 + layer / 100)


def analysis() -> Analysis:
    shapes = HEADS | {name: (1, count) for name, count in ONE.items()}
    spectra = {
        (layer, name, kind): values(count, layer + 10 * (kind == "aware")).repeat(heads, 1)
        for layer in range(LAYERS)
        for name, (heads, count) in shapes.items()
        for kind in ("raw", "aware")
    }
    return Analysis(spectra, INFLUENCE, {}, LAYERS)


def factors() -> Factorisation:
    """What the sliders need of method a3: a cost and a loss curve for every slot, and no factors
    behind them.
    """
    attention = WIDE * (QUERY + KV)
    costs = {
        "qk": Cost(HEAD, attention, attention * HEAD, step=2, kv_per_rank=KV, kv_dense=KV * HEAD),
        "ov": Cost(HEAD, attention, attention * HEAD, kv_per_rank=KV, kv_dense=KV * HEAD),
        "mlp": Cost(NEURONS, 3 * WIDE, 3 * WIDE * NEURONS),
    }
    spectra = {
        (layer, name): Spectrum((layer, name), values(cost.full // cost.step, layer), cost)
        for layer in range(LAYERS)
        for name, cost in costs.items()
    }
    linear = LAYERS * sum(cost.dense for cost in costs.values())
    work = (LayerWork(linear // LAYERS, 2 * QUERY * HEAD),) * LAYERS
    kv = LAYERS * sum(cost.kv_dense for cost in costs.values())
    shape = Shape(linear + 2 * 32000 * WIDE, linear, 2, LAYERS, kv, 32000 * WIDE, work)
    calibration = Influenced(Path(tempfile.gettempdir()), "made up", LAYERS, {})
    evidence = Evidence(spectra, calibration.influence)
    return Factorisation("a3", [{} for _ in range(LAYERS)], evidence, calibration, shape)


def store() -> Store:
    """One that holds the large model in the place of the model the page opens with."""
    one, recipe = Store(lrcore.runs_root(), KINDS), lrcore.Recipe()
    one.objects.put("analysis", calibration_key(recipe), analysis())
    one.objects.put("factors", factor_key(recipe), factors())
    return one


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--port", type=int, default=7860)
    build_app(store()).launch(server_port=options.parse_args().port, **LAUNCH)


if __name__ == "__main__":
    main()
