"""Write docs/architectures.md from the rows of the table and the outcomes of their tests.

python scripts/architectures.py [--measure [FAMILY ...] | --check]: --measure runs the tests of
every row (minutes), or of some, and keeps their outcomes in docs/architectures.json; --check only
compares the page.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from prose import wrap  # noqa: E402

from lrcore.models.architecture import Architecture  # noqa: E402 (the project need not be installed)
from lrcore.models.architectures import ARCHITECTURES, BOTH_WAYS, MISFITS, MULTIMODAL  # noqa: E402

PAGE, RECORD = ROOT / "docs" / "architectures.md", ROOT / "docs" / "architectures.json"
CHECKS = {
    "a": "test_unchanged_layers_written_back_leave_the_logits_bit_identical",
    "b": "test_at_full_rank_a_method_leaves_the_dense_model",
    "c": "test_compressed_with_and_without_cache_is_the_same",
    "d": "test_compressed_in_a_left_padded_batch_or_alone_is_the_same",
    "e": "test_an_export_moved_away_gives_the_same_logits_without_this_project",
}
UNMEASURED = (
    "{}: in the table of families but not yet measured. Run `python scripts/architectures.py "
    "--measure`, which tests every family (see 'A model family' in docs/extending.md)."
)
HEAD = """# Model families

Written by `scripts/architectures.py` from the rows in `lrcore/models/architectures.py` and from the
outcomes of their tests; do not edit by hand. How to add a family: [extending.md](extending.md).

For every row the tests make a tiny random-weight model of that family. Columns *a* to *e* count the
methods, one of every structure that a layer can get (`STRUCTURES` in `tests/tiny_models.py`; none
that caches latents where attention is kept) and each with its default options, for which a check
passed:

* (a) unchanged layers written back give bit-identical logits (no method has a part in this one);
* (b) at full rank the logits are those of the dense model;
* (c) compressed to 70 % of its ranks, the model gives the same logits with and without KV cache,
* (d) and the same alone or in a left-padded batch;
* (e) with 30 % of what a ratio counts removed, exported, moved and loaded in a process that cannot
  import this project, it is bit-identical. Models with experts are the exception: their grouped
  products differ in the last bit with the place of a weight in memory.

(a) to (d) are in `tests/models/test_architectures.py`, (e) is in
`tests/checkpoints/test_export_families.py`. More is tested there: compressed attention with whole
heads is the native attention, and a model rebuilt from its description is the same.

`model_type` is that of `config.json`. *QK, OV, MLP* say how the methods on components solve them:
*free* by any linear map per head, *pairs* by whole rotary pairs, *kept* not at all. Methods on
matrices factorise every projection of every family. *Fused* matrices are read as their parts, and
stay split in the compressed model only where one of the parts has changed. *Stock*: an export with
nothing but narrower MLPs loads without code of this project.

| model_type | QK | OV | MLP | fused | stock | scores | runs with | a | b | c | d | e | notes |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
"""


def measure(families: Collection[str]) -> dict[str, dict[str, list[int]]]:
    """How many of a family's tests passed, of how many, by family and check.

    Raises SystemExit where the tests could not be run, or there is no such family.
    """
    if unknown := sorted({*families} - ARCHITECTURES.keys()):
        sys.exit(f"no family of the table: {', '.join(unknown)}")
    # as the tests are named: of one family alone, not of those that its name begins
    chosen = " or ".join(f"[{name}- or [{name}]" for name in families)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.xml"
        files = [
            str(ROOT / "tests" / name)
            for name in ("models/test_architectures.py", "checkpoints/test_export_families.py")
        ]
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", f"--junitxml={outcomes}", *files, "-k", chosen],
            cwd=ROOT,
            check=False,
        )
        if ran.returncode > 1:  # 1 is tests that failed, and the table says which
            sys.exit(ran.returncode)
        cases = list(ElementTree.parse(outcomes).iter("testcase"))
    letters = {test: letter for letter, test in CHECKS.items()}
    counts = {family: {letter: [0, 0] for letter in CHECKS} for family in families}
    for case in cases:
        test, _, parameters = case.get("name", "").partition("[")
        family = next(iter(re.findall(r"[^-\]]+", parameters)), "")
        if test in letters:
            count = counts[family][letters[test]]
            count[0] += not any(child.tag in ("failure", "error", "skipped") for child in case)
            count[1] += 1
    return counts


def line(name: str, row: Architecture, checks: dict[str, list[int]]) -> str:
    """One family as a row of the table."""
    qk = "kept" if row.norms or row.kept else "pairs" if row.position == "rotary" else "free"
    fused = [
        part
        for part, there in (
            ("qkv", row.qkv != "apart"),
            ("gate and up", row.gate is not None and row.gate == row.up),
        )
        if there
    ]
    scores = ["capped"] if row.softcap else []
    scores += ["windows of its own"] if row.window else []
    passed = [f"{passed}/{total}" for passed, total in checks.values()]
    cells = [
        f"`{name}`",
        qk,
        "kept" if row.kept else "free",
        "neurons of every expert" if row.experts else "neurons",
        ", ".join(fused) or "-",
        "yes" if row.width or row.expert_width else "no",
        ", ".join(scores) or "-",
        row.kernel,
        *passed,
        row.note or "-",
    ]
    return f"| {' | '.join(cells)} |\n"


def page() -> str:
    """The whole page. Raises SystemExit with one sentence where a family was not measured."""
    checks = json.loads(RECORD.read_text(encoding="utf-8"))
    if missing := [name for name in ARCHITECTURES if name not in checks]:
        sys.exit(UNMEASURED.format(", ".join(missing)))
    refused = [
        f"- `{name}` only with "
        + ", ".join(f"`{one}` {' or '.join(map(repr, row.supported(one)))}" for one in row.requires)
        for name, row in ARCHITECTURES.items()
        if row.requires
    ]
    unfit = [f"- `{name}`: {why}" for name, why in MISFITS.items()]
    whole = ", ".join(
        f"`{name}`" for name, row in ARCHITECTURES.items() if row.sequential is None or row.experts
    )
    only = "".join(
        f", of `{name}` unless "
        f"{' and '.join(f'`{field}` is {value!r}' for field, value in row.sequential.items())}"
        for name, row in ARCHITECTURES.items()
        if row.sequential
    )
    more = ", ".join(f"`{name}`" for name, row in ARCHITECTURES.items() if row.adds_more)
    return (
        HEAD
        + "".join(line(name, row, checks[name]) for name, row in ARCHITECTURES.items())
        + wrap(
            "\n## Images and text\n\n"
            + ", ".join(f"`{name}`" for name in MULTIMODAL)
            + ": the language model inside, of a family above, is found and compressed; the rest "
            "is left as it is to the bit (`tests/models/test_multimodal.py`). Calibration and "
            "tasks read images as well, perplexity text alone ([questions with "
            "images](evaluation.md#questions-with-images)). The patches of an image are tokens, "
            "whose rows the vision tower and the projector give: logits are those of transformers "
            "on the image, to the bit (`tests/models/test_images.py`: `llava`, `vipllava`, "
            "`llava_next`; the processors of `llava_onevision` and `mistral3` need torchvision, "
            "with which they were not run). "
            + " and ".join(f"`{name}`" for name in BOTH_WAYS)
            + " let the patches of an image see one another in both directions and are calibrated "
            "and measured on text alone.\n\n## What is refused\n\n"
            "One line says so, before anything is computed:\n\n"
            + "\n".join(refused + unfit)
            + f"\n- the sequential refit for {more}: a layer adds more to the stream than what its "
            "attention and its MLP give\n"
            f"- slicing the residual stream of {whole}{only}, and of models of images and text: it "
            "takes layers that are an attention and then an MLP, each `x + f(norm(x))`\n"
        )
    )


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    if "--measure" in sys.argv:
        named = sys.argv[sys.argv.index("--measure") + 1 :] or list(ARCHITECTURES)
        known = json.loads(RECORD.read_text(encoding="utf-8")) | measure(named)
        kept = {name: known[name] for name in ARCHITECTURES if name in known}
        RECORD.write_text(json.dumps(kept, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
