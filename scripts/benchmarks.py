"""Measures what docs/benchmarks.md reports, and writes its tables between their markers.

    python scripts/benchmarks.py quality     perplexity of every method and policy at 10-50 % on the demo models (and stories260K)
    python scripts/benchmarks.py energy      why the order of the methods is what it is: the share of the output energy each one keeps
    python scripts/benchmarks.py speed       a slider move against the decomposition behind it, and the first spectra
    python scripts/benchmarks.py gram        Gram space against the papers' d x d formulas
    python scripts/benchmarks.py all

Times are ratios within one run on one machine; the text around the tables names it.
"""

import argparse
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import lrcore
from lrcore.layer import MLP, Attention, Layer, Linear, heads, output_heads
from lrcore.linalg import roots
from lrcore.methods import METHODS, truncate
from lrcore.methods import a3 as a3_method
from lrcore.methods import modegpt as modegpt_method
from lrcore.statistics import Moments

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "benchmarks.md"
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(header: list[str], rows: list[list]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def write_section(name: str, text: str, document: Path = DOCUMENT) -> None:
    """Exchange what stands between the markers of a section."""
    page = document.read_text(encoding="utf-8")
    pattern = re.compile(f"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    if not pattern.search(page):
        raise SystemExit(f"{document.name} has no section '{name}'")
    document.write_text(pattern.sub(lambda match: match[1] + text + "\n" + match[2], page), encoding="utf-8")


# ---- quality ------------------------------------------------------------------------------------------------------------------------


def models(only: list[str]) -> Iterator[tuple[str, lrcore.Recipe, str, int]]:
    """Title, recipe, evaluation data and windows of every model there is on this machine, or of those named."""
    for name in [name for name in lrcore.DEMO_MODELS if not only or name in only]:
        yield name, lrcore.Recipe(model=name, data="stories", samples=64, seq_len=256), "stories", 32
    reference = os.environ.get("LRCORE_REFERENCE")
    if reference and (not only or "stories260K" in only):
        text = Path(reference) / "text"
        recipe = lrcore.Recipe(
            model=str(Path(reference) / "models/stories260K"), data=str(text / "tinystories.calibration.txt"),
            samples=128, seq_len=256, sampling="first",
        )  # fmt: skip
        yield "stories260K", recipe, str(text / "tinystories.evaluation.txt"), 128


def quality(only: list[str], policies: list[str]) -> None:
    """Perplexity of every method and policy on every model; the uniform rows, and the best, go into the README as well."""
    for title, recipe, data, windows in models(only):
        model = lrcore.load(recipe.model)
        calibration = lrcore.calibrate(model, recipe)
        dense = lrcore.evaluate(model, data, samples=windows, seq_len=256).perplexity
        rows = [row for method in METHODS for row in method_rows(model, calibration, recipe.with_(method=method), data, windows, policies)]
        size = model.size
        protocol = (
            f"**{title}**: dense perplexity {dense:.3f}; {size.parameters:,} parameters, {size.decoder_linear:,} of them decoder-linear, "
            f"{size.kv_bytes} KV bytes per token. Calibrated on {calibration.protocol['tokens']:,} tokens of "
            f"`{Path(recipe.data).name}` ({recipe.samples} windows of 256, {recipe.sampling}, seed {recipe.seed}); measured on the first "
            f"{windows} windows of 256 of `{Path(data).name}` (test split where there is one)."
        )
        ratios = [f"{ratio:.0%}" for ratio in RATIOS]
        header = ["method", "policy", *ratios, "KV bytes at 50 %"]
        write_section(f"quality {title}", f"{protocol}\n\n{table(header, rows)}")
        chosen = [row[: 2 + len(RATIOS)] for row in rows if row[1] == "uniform" or (row[0], row[1]) == ("fused", "probed")]
        words = f"**{title}**, perplexity with this share of the decoder-linear parameters removed (dense {dense:.3f}):"
        write_section(f"measured {title}", f"{words}\n\n{table(['method', 'policy', *ratios], chosen)}", ROOT / "README.md")


def method_rows(model, calibration, recipe: lrcore.Recipe, data: str, windows: int, policies: list[str]) -> list[list]:
    """One row per policy: perplexity at every ratio, and KV bytes per token at the last."""
    factors, rows = lrcore.factorise(model, calibration, recipe.method), []
    for policy in [row for row in lrcore.policies() if row["name"] in policies or (recipe.method, row["name"]) == ("fused", "probed")]:
        own = lrcore.probe(model, factors) if policy["probed"] else factors
        cells, kept = [], 0
        for ratio in RATIOS:
            small = lrcore.compress(model, recipe.with_(policy=policy["name"], ratio=ratio), own)
            cells.append(f"{lrcore.evaluate(small, data, samples=windows, seq_len=256).perplexity:.3f}")
            kept = small.report["summary"]["kv_bytes_per_token"]
        rows.append([recipe.method, policy["name"], *cells, kept])
        note(f"{model.name} {' '.join(map(str, rows[-1]))}")
    return rows


# ---- energy -------------------------------------------------------------------------------------------------------------------------


def energy(only: list[str]) -> None:
    """Mean share of the output energy that the ranks of a uniform plan keep, by matrix or component."""
    for title, recipe, _, _ in models(only):
        model = lrcore.load(recipe.model)
        calibration = lrcore.calibrate(model, recipe)
        rows = []
        for method in METHODS:
            factors = lrcore.factorise(model, calibration, method)
            for ratio in (0.2, 0.5):
                plan = lrcore.allocate(factors, recipe.with_(method=method, ratio=ratio)).table()
                kept = plan.groupby("component", sort=False).agg(keep=("rank", "mean"), full=("full", "first"), energy=("energy", "mean"))
                cells = ", ".join(f"{name} {row.energy:.4f} ({row.keep / row.full:.2f})" for name, row in kept.iterrows())
                rows.append([method, f"{ratio:.0%}", cells])
        text = table(["method", "removed", "energy kept (share of the ranks)"], rows)
        write_section(f"energy {title}", f"**{title}**\n\n{text}")


# ---- speed --------------------------------------------------------------------------------------------------------------------------


def median_seconds(run: Callable[[], object], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def random_llama_layer(d: int = 1024, d_f: int = 2816, n_q: int = 16, n_kv: int = 8, tokens: int = 6000) -> tuple[Layer, Moments]:
    """A Llama-shaped layer with random weights and the moments of random, correlated inputs."""
    g = torch.Generator().manual_seed(0)
    size = d // n_q

    def linear(out: int, inp: int) -> Linear:
        return Linear(torch.randn(out, inp, generator=g) / inp**0.5)

    attention = Attention(
        q=linear(n_q * size, d), k=linear(n_kv * size, d), v=linear(n_kv * size, d), o=linear(d, n_q * size),
        n_q=n_q, n_kv=n_kv, head_size=size, qk_size=size, v_size=size, scale=size**-0.5, position="none",
    )  # fmt: skip
    layer = Layer(0, attention, MLP(up=linear(d_f, d), gate=linear(d_f, d), down=linear(d, d_f)))
    values = {}
    for tap, width in {"attn_in": d, "attn_out": n_q * size, "mlp_hidden": d_f}.items():
        x = torch.randn(tokens, width, generator=g) @ (torch.randn(width, width, generator=g) / width**0.5)
        values[tap, "second"], values[tap, "mean"] = (x.T @ x).double() / tokens, x.double().mean(0)
    for name, count in (("q", n_q), ("k", n_kv)):
        states = heads(getattr(attention, name).weight.double(), count) @ values["attn_in", "second"]
        squares = (states * heads(getattr(attention, name).weight.double(), count)).sum(-1).flatten()
        values[f"{name}_rotated", "square"] = squares
    return layer, Moments(values, tokens)


def literal_a3(layer: Layer, moments: Moments, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A3 on GQA without rotary as printed: `d x d` roots and stacked `d x d` SVDs. The approximated products, QK and OV of group 0."""
    a = layer.attention
    root, inverse = roots(moments.second("attn_in"))
    wq, wk, wv = (heads(p.weight.double(), n) for p, n in ((a.q, a.n_q), (a.k, a.n_kv), (a.v, a.n_kv)))
    out = output_heads(a.o.weight.double(), a.n_q)
    products = []
    for g in range(a.n_kv):
        own = range(g * a.group, (g + 1) * a.group)
        stacked = torch.cat([root @ wq[i].T @ wk[g] @ root for i in own])  # [group * d, d]
        u, s, vt = torch.linalg.svd(stacked, full_matrices=False)
        qk = (u[:, :rank] * s[:rank]) @ vt[:rank] @ inverse
        stacked = torch.cat([root @ wv[g].T @ out[i].T for i in own], 1)  # [d, group * d]
        u, s, vt = torch.linalg.svd(stacked, full_matrices=False)
        ov = inverse @ (u[:, :rank] * s[:rank]) @ vt[:rank]
        if g == 0:
            products = [inverse @ qk[: root.shape[0]], ov[:, : root.shape[0]]]
    second_root, _ = roots(moments.second("mlp_hidden"))
    ((second_root**2).sum(0) * (layer.mlp.down.weight.double() ** 2).sum(0)).sort(descending=True)
    return products[0], products[1]


def gram_a3(layer: Layer, moments: Moments, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same products through `factor` and `truncate`."""
    factors = a3_method.factor(layer, moments)
    b = truncate(layer, factors, {"qk": rank, "ov": rank, "mlp": layer.mlp.down.weight.shape[1] // 2}).attention
    q, k = heads(b.q.weight.double(), b.n_q)[0], heads(b.k.weight.double(), b.n_kv)[0]
    return q.T @ k, heads(b.v.weight.double(), b.n_kv)[0].T @ output_heads(b.o.weight.double(), b.n_q)[0].T


def literal_modegpt(layer: Layer, moments: Moments, keep: int) -> torch.Tensor:
    """MoDeGPT's three modules as printed: a `d x d` root for QK and VO, inverse and pseudo-inverse for the MLP."""
    a = layer.attention
    root, _ = roots(moments.second("attn_in"))
    for projection, count in ((a.q, a.n_q), (a.k, a.n_kv)):
        for weight in heads(projection.weight.double(), count):
            (root @ weight.T).norm(dim=0)
    for g in range(a.n_kv):
        torch.linalg.svd(root @ heads(a.v.weight.double(), a.n_kv)[g].T, full_matrices=False)
    gram = moments.second("mlp_hidden") * moments.tokens
    leverage = (gram @ torch.linalg.inv(gram + torch.eye(len(gram), dtype=gram.dtype))).diagonal()
    kept = leverage.topk(keep).indices.sort().values
    return layer.mlp.down.weight.double() @ gram[:, kept] @ torch.linalg.pinv(gram[kept][:, kept], hermitian=True)


def gram_modegpt(layer: Layer, moments: Moments, keep: int) -> torch.Tensor:
    factors = modegpt_method.factor(layer, moments)
    small = truncate(layer, factors, {"qk": 32, "ov": 32, "mlp": keep})
    order = factors["mlp"].order[:keep].sort().indices
    return small.mlp.down.weight.double()[:, order]


def gram(only: list[str]) -> None:
    """Gram space against the papers' `d x d` formulas, on one layer with random weights."""
    layer, moments = random_llama_layer()
    rows = []
    for name, literal, ours, rank in (("a3", literal_a3, gram_a3, 32), ("modegpt", literal_modegpt, gram_modegpt, 1408)):
        slow, quick = literal(layer, moments, rank), ours(layer, moments, rank)
        pairs = zip(slow, quick, strict=True) if isinstance(slow, tuple) else [(slow, quick)]
        gap = max(float((x - y).norm() / x.norm()) for x, y in pairs)
        slow_s, quick_s = (
            median_seconds(lambda f=literal, r=rank: f(layer, moments, r), 3),
            median_seconds(lambda f=ours, r=rank: f(layer, moments, r), 3),
        )
        rows.append([name, f"{slow_s:.2f}", f"{quick_s:.2f}", f"{slow_s / quick_s:.1f}", f"{gap:.1e}"])
        note(f"gram {rows[-1]}")
    header = ["method", "`d x d` formulas, s", "`factor` + `truncate`, s", "ratio", "largest relative difference of the result"]
    text = f"One layer, d 1024, d_f 2816, 16 query and 8 kv heads, no rotary; {machine()}."
    write_section("gram", f"{text}\n\n{table(header, rows)}")


def speed(only: list[str]) -> None:
    """What a slider move costs against the decomposition behind it, and how long the first spectra take."""
    parts, rows = [f"{machine()}.", ""], []
    for name in [name for name in lrcore.DEMO_MODELS if not only or name in only]:
        model, recipe = lrcore.load(name), lrcore.Recipe(model=name)
        begin = time.perf_counter()
        calibration = fresh_calibration(model, recipe)
        calibrated = time.perf_counter()
        lrcore.analyse(model, calibration)
        analysed = time.perf_counter()
        for method in METHODS:
            own = recipe.with_(method=method)
            factor = median_seconds(lambda m=model, c=calibration, k=method: lrcore.factorise(m, c, k), 3)
            factors = lrcore.factorise(model, calibration, method)
            allocate = median_seconds(lambda f=factors, r=own: lrcore.allocate(f, r))
            cut = median_seconds(lambda m=model, f=factors, r=own: lrcore.compress(m, r, f))
            rows.append([name, method, f"{factor * 1e3:.0f}", f"{allocate * 1e3:.1f}", f"{cut * 1e3:.0f}", f"{factor / allocate:.0f}"])
            note(f"speed {rows[-1]}")
        parts += [f"{name}: calibration on 64 x 256 tokens {calibrated - begin:.1f} s, all spectra {analysed - calibrated:.1f} s.", ""]
    header = ["model", "method", "factor, ms", "allocate (a slider move), ms", "allocate + truncate + write, ms", "factor / slider move"]
    write_section("speed", "\n".join([*parts, table(header, rows)]))


def fresh_calibration(model, recipe):
    """A calibration that no cache can shorten."""
    import tempfile

    kept, os.environ["LRCORE_CACHE"] = os.environ.get("LRCORE_CACHE"), tempfile.mkdtemp()
    try:
        return lrcore.calibrate(model, recipe)
    finally:
        os.environ.pop("LRCORE_CACHE")
        if kept:
            os.environ["LRCORE_CACHE"] = kept


def machine() -> str:
    return f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__.partition('+')[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["quality", "energy", "speed", "gram", "all"])
    parser.add_argument("models", nargs="*", help="demo-llama, demo-opt, stories260K; all where none is named")
    parser.add_argument(
        "--policies", nargs="+", default=[row["name"] for row in lrcore.policies()], help="for quality; fused + probed always"
    )
    said = parser.parse_args()
    if said.what in ("quality", "all"):
        quality(said.models, said.policies)
    for name, run in {"energy": energy, "speed": speed, "gram": gram}.items():
        if said.what in (name, "all"):
            run(said.models)


if __name__ == "__main__":
    main()
