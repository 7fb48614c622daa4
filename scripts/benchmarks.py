"""Measures what docs/benchmarks.md reports, and writes its tables between their markers.

python scripts/benchmarks.py WHAT, where WHAT is one of:

    quality   perplexity of every method and policy at 10-50 % on the demo models (and stories260K)
    variants  the papers' variants of a method, one option away from its default
    depth     perplexity without one and two whole layers
    width     perplexity with a narrower residual stream (SliceGPT) at 10-50 %
    cached    perplexity with a half to a tenth of the KV cache, by CARE and by `fused`
    trained   perplexity with refit 'trained' beside 'on'
    healing   perplexity before and after training the factors against the dense model
    healed    the same of several methods, on no more text than calibration has
    prediction  predicted rises of the loss against actual ones, with their intervals
    fresh     rises of the loss by every method at 10, 30 and 50 % on models that it trains first:
              two architectures with three seeds each, on WikiText-2 of the reference data
    real      perplexity of SmolLM2-135M on WikiText-2 of the reference data: the papers' pairings
              and ours at 10-50 %
    accuracy  perplexity, accuracy on five tasks, sizes and seconds of SmolLM2-135M by the papers'
              methods and ours: the table of README
    recipes   tables of the papers, which ship as sweeps, on SmolLM2-135M and WikiText-2
    images    accuracy on questions with images of a small LLaVA that it trains first: LatentLLM's
              table 4
    solve     seconds from moments to a compressed model, for the same tables
    energy    why the order of the methods is what it is: the share of output energy each one keeps
    pareto    milliseconds per token of every method, and the picture of the README: perplexity
              against parameters, KV cache and milliseconds, from the record
    speed     a slider move against the decomposition behind it, and the first spectra
    stages    what every stage takes on SmolLM2-135M, beside the forward passes
    start     seconds until a command says something
    growth    how seconds and memory grow with layers, width and tokens
    throughput  prefill and decoding against the dense model, beside the ratio of the FLOPs:
              SmolLM2-135M, and a made-up model of 1.1 billion parameters
    gpu       models of 7 and 8 billion parameters on a CUDA device: seconds by stage, memory,
              tokens per second; 30 GB of disk
    latency   a quarter of the layers' time removed against a quarter of their parameters
    memory    peak memory of compressing a model of 1.1 billion parameters with offloaded layers
    gram      Gram space against the papers' d x d formulas
    workers   two workers of a Ray cluster against one, on this machine, where Ray is installed
    cancel    how long a job goes on after it was cancelled, by stage
    threads   how threads wait for each other, and how many a decomposition takes
    page      what a person at the page waits for: first picture, slider, Start to progress
    all       everything above

Times are ratios within one run on one machine; the text around the tables names it.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from bench.accuracy import accuracy  # noqa: E402 (after the path)
from bench.cached import cached  # noqa: E402 (after the path)
from bench.cancel import cancel  # noqa: E402 (after the path)
from bench.depth import depth  # noqa: E402 (after the path)
from bench.energy import energy  # noqa: E402 (after the path)
from bench.fresh import fresh  # noqa: E402 (after the path)
from bench.gpu import gpu  # noqa: E402 (after the path)
from bench.gram import gram  # noqa: E402 (after the path)
from bench.growth import growth  # noqa: E402 (after the path)
from bench.healed import healed  # noqa: E402 (after the path)
from bench.healing import healing  # noqa: E402 (after the path)
from bench.images import images  # noqa: E402 (after the path)
from bench.latency import latency  # noqa: E402 (after the path)
from bench.memory import memory  # noqa: E402 (after the path)
from bench.page import check  # noqa: E402 (after the path)
from bench.pareto import pareto  # noqa: E402 (after the path)
from bench.prediction import prediction  # noqa: E402 (after the path)
from bench.quality import Cells, quality, solve  # noqa: E402 (after the path)
from bench.real import real  # noqa: E402 (after the path)
from bench.recipes import check_names, recipes  # noqa: E402 (after the path)
from bench.speed import speed  # noqa: E402 (after the path)
from bench.stages import stages  # noqa: E402 (after the path)
from bench.start import start  # noqa: E402 (after the path)
from bench.threads import threads  # noqa: E402 (after the path)
from bench.throughput import throughput  # noqa: E402 (after the path)
from bench.trained import trained  # noqa: E402 (after the path)
from bench.ui import ui  # noqa: E402 (after the path)
from bench.variants import variants  # noqa: E402 (after the path)
from bench.width import width  # noqa: E402 (after the path)
from bench.workers import workers  # noqa: E402 (after the path)

import lrcore  # noqa: E402 (after the path)

JOBS = {
    "variants": variants,
    "depth": depth,
    "width": width,
    "cached": cached,
    "healing": healing,
    "healed": healed,
    "trained": trained,
    "prediction": prediction,
    "fresh": fresh,
    "real": real,
    "accuracy": accuracy,
    "recipes": recipes,
    "images": images,
    "solve": solve,
    "energy": energy,
    "pareto": pareto,
    "speed": speed,
    "stages": stages,
    "start": start,
    "growth": growth,
    "throughput": throughput,
    "gpu": gpu,
    "latency": latency,
    "memory": memory,
    "gram": gram,
    "workers": workers,
    "cancel": cancel,
    "threads": threads,
    "page": ui,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["quality", *JOBS, "all"])
    parser.add_argument(
        "models",
        nargs="*",
        help="demo-llama, demo-opt, stories260K, or for recipes their names; all where none is "
        "named",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=[],
        help="for quality: only these; the record keeps the others",
    )
    parser.add_argument(
        "--policies",
        nargs="+",
        default=[],
        help="for quality: only these; the record keeps the others",
    )
    parser.add_argument(
        "--missing",
        action="store_true",
        help="for quality: only cells that the record lacks, so that a run goes on where it ended",
    )
    arguments = parser.parse_args()
    try:
        if arguments.what == "recipes":
            check_names(arguments.models)
        else:
            check(arguments.models)
    except lrcore.InputError as error:
        parser.exit(2, f"error: {error}\n")
    if arguments.what in ("quality", "all"):
        wanted = Cells(arguments.methods, arguments.policies, arguments.missing)
        quality(arguments.models, wanted)
    for name, run in JOBS.items():
        if arguments.what in (name, "all"):
            run(arguments.models)


if __name__ == "__main__":
    main()
