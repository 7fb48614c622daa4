"""Serve the page with the spectra of a very large model: `python scripts/large_model.py --port
7860`.

The model has 80 layers with the shapes of a 70-billion-parameter Llama (8192 wide, 64 query and 8
key-value heads of 128, 28672 neurons). Its singular values are synthetic: the script shows how the
page handles their number. The model cannot be compressed.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import lrcore
from lrcore.compression.analyze import Analysis
from lrcore.compression.calibration.calibrate import Calibration
from lrcore.compression.solve.factorize import Factorization
from lrcore.layers.account import LayerWork
from lrcore.layers.spectra import Cost, Spectrum
from lrcore.ranks.evidence import Evidence
from lrcore.ranks.plan import Shape
from lrcore.runs.runs import runs_folder
from workbench.app.app import build_app
from workbench.jobs import KINDS
from workbench.server.host_names import HostNames
from workbench.server.web_app import page_server, web_app
from workbench.state.keys import calibration_key, factor_key
from workbench.state.store import Store

LAYERS, WIDE, QUERY, KV, HEAD, NEURONS = 80, 8192, 64, 8, 128, 28672
HEADS = {"qk": (QUERY, HEAD), "ov": (QUERY, HEAD)}
COUNTS = {
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
    """A calibration that contains influences only."""

    @property
    def influence(self) -> dict[str, list[float]]:
        return dict.fromkeys(("block", "attention", "mlp"), INFLUENCE)


def values(count: int, layer: int) -> torch.Tensor:
    """Return a power law, steeper in later layers: [count], float64, descending."""
    return torch.arange(1, count + 1, dtype=torch.float64) ** -(0.4 + layer / 100)


def analysis() -> Analysis:
    shapes = HEADS | {name: (1, count) for name, count in COUNTS.items()}
    spectra = {
        (layer, name, kind): values(count, layer + 10 * (kind == "aware")).repeat(heads, 1)
        for layer in range(LAYERS)
        for name, (heads, count) in shapes.items()
        for kind in ("raw", "aware")
    }
    return Analysis(spectra, INFLUENCE, {}, LAYERS)


def factors() -> Factorization:
    """Return costs and loss curves of all slots of method a3, without factors."""
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
    windows = torch.zeros(64, 256, dtype=torch.long)
    calibration = Influenced(
        Path(tempfile.gettempdir()),
        "made up",
        LAYERS,
        {},
        tokens=windows,
        unseen_tokens=windows,
    )
    evidence = Evidence(spectra, calibration.influence)
    return Factorization("a3", [{} for _ in range(LAYERS)], evidence, calibration, shape)


def store() -> Store:
    """Return a store with the large model instead of the model that the page opens with."""
    large, recipe = Store(runs_folder(), KINDS), lrcore.Recipe()
    large.objects.put("analysis", calibration_key(recipe), analysis())
    large.objects.put("factors", factor_key(recipe), factors())
    return large


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--port", type=int, default=7860)
    app = web_app(build_app(store()), HostNames())
    page_server(app, "127.0.0.1", options.parse_args().port).run()


if __name__ == "__main__":
    main()
