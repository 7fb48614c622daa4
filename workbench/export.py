"""What leaves the workbench: a model card and a report page, both made from a run's own files."""

from html import escape

from . import markup, text
from .runs import Run


def model_card(run: Run) -> str:
    """Markdown: what the model is, how it was made, how it was measured, how to load it."""
    recipe, summary = run.recipe, run.report["summary"]
    rows = [
        ("parameters", text.count(summary["parameters"]), text.count(summary["dense_parameters"])),
        ("size", text.megabytes(summary["megabytes"]), text.megabytes(summary["dense_megabytes"])),
        ("KV cache, bytes per token", text.count(summary["kv_bytes_per_token"]), text.count(summary["dense_kv_bytes_per_token"])),
        ("FLOPs per token", text.short(summary["flops_per_token"]), text.short(summary["dense_flops_per_token"])),
    ]
    for one in run.evaluations:
        rows.append((f"perplexity: {text.protocol(one['protocol'])}", figure(one["perplexity"]), figure(one["dense_perplexity"])))
    table = "\n".join(f"| {name} | {now} | {before} |" for name, now, before in rows)
    calibration = run.report.get("calibration", {})
    return f"""# {run.name}

{recipe.model}, compressed with low-rank factors: method **{recipe.method}**, policy **{recipe.policy}**,
{summary["achieved"]:.2%} of the budget "{summary["budget"]}" removed ({recipe.ratio:.1%} asked for).

| | this model | dense |
|---|---:|---:|
{table}

Calibrated on {recipe.samples} windows of {recipe.seq_len} tokens of `{recipe.data}`, drawn {recipe.sampling}, seed {recipe.seed},
mode {calibration.get("mode", recipe.calibration)}. Base model: `{run.report.get("base", recipe.model)}`.

## Load it

```python
import lrcore

model = lrcore.load("path/to/this/folder")
print(lrcore.generate(model, "{text.PROMPT}"))
```

## Make it again

```
{recipe.command()}
```
"""


def figure(number: float | None) -> str:
    return "not finite" if number is None else f"{number:.4f}"


def report_html(run: Run) -> str:
    """One page that needs nothing else: summary, measurements, recipe, ranks."""
    recipe_rows = "".join(row(name, value) for name, value in run.recipe.to_dict().items())
    measured = "".join(
        row(text.protocol(one["protocol"]), figure(one["perplexity"]), figure(one["dense_perplexity"])) for one in run.evaluations
    )
    head, *body = [line.split(",") for line in run.ranks_csv.splitlines() if line]
    ranks = row(*head, tag="th") + "".join(row(*line) for line in body)
    seconds = "".join(row(stage, f"{value:.2f} s") for stage, value in run.report.get("seconds", {}).items())
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(run.name)}</title><style>
body{{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}}
table{{border-collapse:collapse;margin:.5rem 0 1.5rem}}td,th{{padding:.2rem .8rem;border-bottom:1px solid #ddd;text-align:left}}
.cells{{display:flex;flex-wrap:wrap;gap:1.5rem}}.cell{{display:flex;flex-direction:column}}.cell b{{font-size:1.2rem}}.cell i{{color:#777}}
</style><h1>{escape(run.name)}</h1>{markup.readout(run.report["summary"])}
<h2>Perplexity</h2><table>{row("protocol", "this model", "dense", tag="th")}{measured}</table>
<h2>Recipe</h2><table>{recipe_rows}</table><h2>Seconds</h2><table>{seconds}</table><h2>Ranks</h2><table>{ranks}</table></html>"""


def row(*cells: object, tag: str = "td") -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"
