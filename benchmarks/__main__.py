"""Command line of the benchmarks, which write their tables to docs/benchmarks/.

python -m benchmarks NAME, where NAME is one of:

    quality     perplexity of all methods and policies at 10-50 % on the demo models and stories260K
    sample      repeat a random sample of the cells of `quality` and `real` with the present code
    tokens      perplexity by the number of calibration tokens, with and without damped refits
    calibration_texts
                perplexity by the calibration text and by the seed of its windows
    variants    perplexity with single options changed from their defaults
    depth       perplexity without one and two layers
    width       perplexity with a narrower residual stream (SliceGPT) at 10-50 %
    cached      perplexity with a half to a tenth of the KV cache, by CARE and by `fused`
    trained     perplexity with refit 'trained' and with refit 'on'
    bytes       perplexity against MB: quantized, low rank, both in sequence, and budget bytes
    codes       perplexity of `fused` with pairs, and with sparse codes for gate and up
    sparse_decoding
                decoding of SmolLM2-135M with sparse matrices, in processor time
    nested      perplexity of models cut from a nested checkpoint, and compressed directly
    healing     perplexity before and after healing, for a few settings on demo-llama
    healed      perplexity before and after healing on the calibration text, for several methods
    prediction  predicted loss increases against actual increases, with their intervals
    fresh       loss increases at 10, 30 and 50 % on six models that are trained first
                (two architectures, three seeds) on WikiText-2 of the reference data
    real        perplexity of SmolLM2-135M on WikiText-2 of the reference data at 10-50 %
    chat        perplexity of SmolLM2-135M-Instruct on answers in conversations, calibrated on
                conversations and on text
    accuracy    perplexity, accuracy on five tasks, sizes and seconds of SmolLM2-135M
    recipes     published tables, which ship as sweeps, on SmolLM2-135M and WikiText-2
    images      accuracy on questions with images of a small LLaVA that is trained first
    solve       seconds from moments to a compressed model
    energy      fraction of the output energy that each method preserves
    pareto      milliseconds per token, and the picture of perplexity against sizes and time
    speed       slider moves and decompositions, and the first spectra
    stages      stages on SmolLM2-135M relative to the forward passes
    start       seconds until the first output of a command
    growth      growth of seconds and memory with layers, width and tokens
    throughput  prefill and decoding relative to the dense model: SmolLM2-135M, and a random model
                of 1.1 billion parameters
    gpu         models of 7 and 8 billion parameters on a CUDA device; 30 GB of disk
    latency     a quarter of the layer time removed against a quarter of the parameters
    memory      peak memory of compressing a model of 1.1 billion parameters with offloaded layers
    gram        Gram-space formulas against the `d x d` formulas of the papers
    workers     one and two workers of a Ray cluster, if Ray is installed
    peers       the same compressions by the code of other projects, each in an environment of its
                own: perplexity, processor time and memory; needs a package index
    cancel      longest time between two checks for cancellation, by stage
    threads     wait policies of threads, and threads per decomposition
    page        response times of the page
    first_sight words and controls that each tab of the page shows at first sight
    all         all of these

`python -m benchmarks.scale` measures compressing the shapes of Llama-2-7B and Llama-3-8B.
"""

import argparse

import lrcore

from .accuracy import accuracy
from .calibration_texts import calibration_texts
from .cancel import cancel
from .chat import chat
from .codes import codes
from .energy import energy
from .first_sight import first_sight
from .fresh_models import fresh
from .gpu import gpu
from .gram import gram
from .growth import growth
from .healing import healed, healing
from .images import images
from .kv_cache import cached
from .latency import latency
from .layers_and_width import depth, width
from .memory import memory
from .nested import nested
from .page_speed import page
from .paper_tables import check_names, recipes
from .pareto import pareto
from .peers import peers
from .perplexity import Selection, quality, solve
from .predictions import prediction
from .real_model import real
from .refit import trained
from .sample import sample
from .sizes import sizes
from .sparse_decoding import sparse_decoding
from .speed import speed
from .stages import stages
from .start import start
from .subjects import check_models
from .threads import threads
from .throughput import throughput
from .tokens import tokens
from .variants import variants
from .workers import workers

JOBS = {
    "sample": sample,
    "tokens": tokens,
    "variants": variants,
    "depth": depth,
    "width": width,
    "cached": cached,
    "bytes": sizes,
    "codes": codes,
    "calibration_texts": calibration_texts,
    "sparse_decoding": sparse_decoding,
    "nested": nested,
    "healing": healing,
    "healed": healed,
    "trained": trained,
    "prediction": prediction,
    "fresh": fresh,
    "real": real,
    "chat": chat,
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
    "peers": peers,
    "cancel": cancel,
    "threads": threads,
    "page": page,
    "first_sight": first_sight,
}


def main() -> None:
    """Read the arguments and run the benchmarks."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "benchmark", choices=["quality", *JOBS, "all"], metavar="NAME", help="see above"
    )
    parser.add_argument(
        "models",
        nargs="*",
        help="demo-llama, demo-opt, stories260K, or names of tables for recipes (default: all)",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=[],
        help="for quality: measure only these; the record keeps the remaining cells",
    )
    parser.add_argument(
        "--policies",
        nargs="+",
        default=[],
        help="for quality: measure only these; the record keeps the remaining cells",
    )
    parser.add_argument(
        "--missing",
        action="store_true",
        help="for quality: measure only cells that the record lacks, to continue a run",
    )
    arguments = parser.parse_args()
    try:
        if arguments.benchmark == "recipes":
            check_names(arguments.models)
        else:
            check_models(arguments.models)
    except lrcore.InputError as error:
        parser.exit(2, f"error: {error}\n")
    if arguments.benchmark in ("quality", "all"):
        selection = Selection(arguments.methods, arguments.policies, arguments.missing)
        quality(arguments.models, selection)
    for name, run in JOBS.items():
        if arguments.benchmark in (name, "all"):
            run(arguments.models)


if __name__ == "__main__":
    main()
