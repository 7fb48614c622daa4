"""Write docs/architectures.md from the rows of the table and the results of their tests.

python scripts/architectures.py [--measure [FAMILY ...] | --check]: --measure runs the tests of all
rows (minutes) or of the named families and stores the results in docs/architectures.json; --check
only compares the page.
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

import transformers  # noqa: E402
from prose import wrap  # noqa: E402
from transformers import CONFIG_MAPPING  # noqa: E402
from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)

from lrcore.compression.step_rules import MATRIX_METHODS  # noqa: E402
from lrcore.models.architecture import Architecture  # noqa: E402 (the project need not be installed)
from lrcore.models.architectures import (  # noqa: E402
    ARCHITECTURES,
    BIDIRECTIONAL_IMAGES,
    MULTIMODAL,
    SOUNDS_ONLY,
    UNSUPPORTED_FAMILIES,
)
from lrcore.models.by_structure import refusal  # noqa: E402

# Families whose images the tests read
PICTURED = (
    *("llava", "vipllava", "llava_next", "smolvlm", "internvl"),
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
    *("gemma3", "gemma4", "gemma4_unified", "got_ocr2", "kimi_k25"),
)
TYPES = ROOT / "docs" / "causal_types.json"  # the causal types of a version of transformers
PAGE, RECORD = ROOT / "docs" / "architectures.md", ROOT / "docs" / "architectures.json"
CHECKS = {
    "a": "test_reading_and_writing_layers_keeps_the_logits_bit_for_bit",
    "b": "test_full_rank_keeps_the_dense_model",
    "c": "test_compressed_model_gives_the_same_logits_with_a_cache",
    "d": "test_compressed_model_gives_the_same_logits_with_left_padding",
    "e": "test_a_moved_export_gives_the_same_logits_without_this_project",
}
# Causal types without a row that the check before a calibration refuses, with the reason
REFUSED = {
    "cpmant": "its tokens attend to later tokens",
    "dory": "a layer runs more than once",
    "hrm_text": "a layer runs more than once",
    "inkling2_loop_text": "the model reads attributes of its layers",
    "inkling2_text": "the model reads attributes of its layers",
    "openai-gpt": "layers return a list",
    "reformer": "layers pass a state to each other",
    "rwkv": "layers pass a state to each other",
    "trocr": "no input reaches the attention to an encoder",
    "xlm": "the states differ",
    "xlnet": "the states differ",
    "zaya": "the states differ",
}
UNMEASURED = (
    "{}: in the table of families but not yet measured. Run `python scripts/architectures.py "
    "--measure`, which tests all families (see 'A model family' in docs/extending.md)."
)
HEAD = """# Model families

`scripts/architectures.py` writes this page from the rows in `lrcore/models/architectures.py` and
the results of their tests; do not edit it by hand. How to add a family:
[extending.md](extending.md).

* *model_type*: `model_type` in `config.json`.
* *QK, OV, MLP*: how methods for components solve this part. *free*: by any linear map per head.
  *pairs*: by complete rotary pairs. *neurons*: by selecting neurons. *unchanged*: not compressed.
  If a mixer takes the place of attention in some layers, QK and OV are those of the other layers.
  Methods for matrices factorize all projections of all families.
* *fused*: matrices that the checkpoint stores together. They are read as their parts, and remain
  split in the compressed model only if a part has changed.
* *standard*: an export whose only change is narrower MLPs loads without the code of this project.
* *scores*: special treatment of attention scores.
* *runs with*: attention implementation of transformers.
* *a* to *e*: number of methods that passed a check, as described below.

For each row the tests make a tiny model of that family with random weights. Columns *a* to *e*
count methods with their default options, one for each structure of a compressed layer (`STRUCTURES`
in `tests/tiny_models.py`; no method that caches latents if attention is unchanged). A method passes

* (a) if unchanged layers, written back, give bit-identical logits (without any method);
* (b) if at full rank the logits equal those of the dense model;
* (c) if a model compressed to 70 % of its ranks gives the same logits with and without KV cache;
* (d) if that model gives the same logits for a single prompt and in a left-padded batch;
* (e) if a model with a ratio of 30 % removed, exported, moved and loaded in a process that cannot
  import this project, is bit-identical. Models with experts are the exception: the last bit of
  their grouped products depends on the memory address of a weight.

`tests/models/test_architectures.py` contains (a) to (d),
`tests/checkpoints/test_export_families.py` contains (e). Further tests check that compressed
attention with complete heads equals the native attention, and that a model rebuilt from its
description is the same.

| model_type | QK | OV | MLP | fused | standard | scores | runs with | a | b | c | d | e | notes |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
"""


def measure(families: Collection[str]) -> dict[str, dict[str, list[int]]]:
    """Run the tests of the families; return passed and total counts by family and check.

    Raises SystemExit if pytest fails to run or a family is unknown.
    """
    if unknown := sorted({*families} - ARCHITECTURES.keys()):
        sys.exit(f"no family of the table: {', '.join(unknown)}")
    # matches the family exactly, not families whose names start with its name
    chosen = " or ".join(f"[{name}- or [{name}]" for name in families)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.xml"
        files = [
            str(ROOT / "tests" / name)
            for name in ("models/test_architectures.py", "checkpoints/test_export_families.py")
        ]
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", f"--junitxml={outcomes}", *files),
                *("-m", "soak or not soak", "-k", chosen),  # CI runs a sample
            ],
            cwd=ROOT,
            check=False,
        )
        if ran.returncode > 1:  # 1: failed tests, which the table shows
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
    """Return the table row of a family."""
    qk = (
        "unchanged"
        if row.norms or row.native_attention
        else "pairs"
        if row.position == "rotary"
        else "free"
    )
    fused = [
        part
        for part, is_fused in (
            ("qkv", row.qkv != "separate"),
            ("gate and up", row.gate is not None and row.gate == row.up),
        )
        if is_fused
    ]
    scores = ["capped"] if row.softcap else []
    scores += ["separate windows"] if row.window else []
    passed = [f"{passed}/{total}" for passed, total in checks.values()]
    cells = [
        f"`{name}`",
        qk,
        "unchanged" if row.native_attention else "free",
        "neurons of each expert" if row.experts else "neurons",
        ", ".join(fused) or "-",
        "yes" if (row.expert_width if row.experts else row.width) else "no",
        ", ".join(scores) or "-",
        row.kernel,
        *passed,
        row.note or "-",
    ]
    return f"| {' | '.join(cells)} |\n"


def causal_types() -> dict[str, str | dict[str, str]]:
    """Return the version of the installed transformers and its types of causal language models.

    Each type has the reason for which a model with the default config is refused, or "".
    """
    reasons = {}
    for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        try:
            reasons[name] = refusal(CONFIG_MAPPING[name]())
        except Exception:  # a config without defaults
            reasons[name] = ""
    return {"transformers": transformers.__version__, "types": reasons}


def types_table() -> str:
    """Return the support of all causal types."""
    record = json.loads(TYPES.read_text(encoding="utf-8"))
    groups: dict[str, list[str]] = {}
    for name, reason in record["types"].items():
        if name in ARCHITECTURES:
            support = "row"
        elif name in UNSUPPORTED_FAMILIES:
            support = "unsupported, see below"
        elif name in MULTIMODAL or f"{name}_text" in ARCHITECTURES:
            support = "row of the language model"
        elif reason := reason or REFUSED.get(name, ""):
            support = f"refused: {reason}"
        else:
            support = "matrices"
        groups.setdefault(support, []).append(f"`{name}`")
    lines = [f"| {support} | {', '.join(names)} |\n" for support, names in groups.items()]
    return (
        f"transformers {record['transformers']} has {len(record['types'])} types of causal "
        "language models:\n\n| support | model_type |\n|---|---|\n" + "".join(sorted(lines))
    )


def page() -> str:
    """Return the text of the page. Raises SystemExit if a family was not measured."""
    checks = json.loads(RECORD.read_text(encoding="utf-8"))
    if missing := [name for name in ARCHITECTURES if name not in checks]:
        sys.exit(UNMEASURED.format(", ".join(missing)))
    conditions = [
        f"- `{name}` unless "
        + ", ".join(
            f"`{field}` is {' or '.join(map(repr, row.supported(field)))}" for field in row.requires
        )
        for name, row in ARCHITECTURES.items()
        if row.requires
    ]
    unsupported = [f"- `{name}`: {reason}" for name, reason in UNSUPPORTED_FAMILIES.items()]
    never_sliced = ", ".join(
        f"`{name}`" for name, row in ARCHITECTURES.items() if row.sequential is None or row.experts
    )
    sliced_if = "".join(
        f", of `{name}` unless "
        f"{' and '.join(f'`{field}` is {value!r}' for field, value in row.sequential.items())}"
        for name, row in ARCHITECTURES.items()
        if row.sequential
    )
    methods = ", ".join(f"`{name}`" for name in MATRIX_METHODS[:-1])
    additions = ", ".join(
        f"`{name}`" for name, row in ARCHITECTURES.items() if row.has_further_updates
    )
    tested = ", ".join(f"`{name}`" for name in PICTURED)
    return (
        HEAD
        + "".join(line(name, row, checks[name]) for name, row in ARCHITECTURES.items())
        + wrap(
            "\n## Images and text\n\n"
            + ", ".join(f"`{name}`" for name in MULTIMODAL)
            + ": the language model, of a family above, is compressed; the remaining weights are "
            "bit-identical (`tests/models/test_multimodal.py`). Calibration and tasks also read "
            "images, perplexity only text ([questions with "
            "images](evaluation.md#questions-with-images)). The processor of the model prepares an "
            "image, and the network gets all of its tensors. The patches are tokens whose "
            "embeddings, rotary positions (M-RoPE) and terms between layers (deepstack) are those "
            "of transformers: logits and states of all layers are bit-identical "
            f"(`tests/models/test_images.py`: {tested}; "
            "`llava_onevision` and `mistral3` were not tested). The processor of `smolvlm` needs "
            "the package num2words, those of `gemma4_unified` and `kimi_k25` torchvision. In "
            + ", ".join(f"`{name}`" for name in BIDIRECTIONAL_IMAGES)
            + " the patches of an image attend to each other in both directions, if the config "
            "says so. "
            + ", ".join(f"`{name}`" for name in SOUNDS_ONLY)
            + " is calibrated and measured on text only. A folder with the config of one of these "
            "models that holds the weights of its language model alone (Qwen3.5, Gemma) is loaded "
            "as that language model.\n\n## Families without a row\n\n"
            "Of a causal language model without a row, the decoder layers are the list of modules "
            "with the most parameters, and their matrices all linear modules in them, named by "
            "their paths. "
            f"{methods} and `{MATRIX_METHODS[-1]}` compress these matrices, with "
            "all policies, budgets of parameters and FLOPs, quantization, sparsity, fine-tuning, "
            "analysis and `--offload` (unless loading joins or renames weights); an export "
            "contains its code. Routed experts are compressed like those of families with a row, "
            "also if they clamp gates and ups (`deepseek_v4`, `minimax_m3_vl_text`). The experts "
            "of `dbrx` and "
            "`jetmoe`, which are stored in another way, routers, indexers of sparse attention and "
            "matrices that several layers share stay dense. The KV cache counts the outputs of "
            "`k_proj`, `v_proj` and `kv_a_proj_with_mqa`, and FLOPs the matrices only. The states "
            "of linear attention, Mamba and convolutions have the same size for any number of "
            "tokens; sizes and costs show them as bytes per sequence. States that a model keeps "
            "outside the layers of its cache (`minimax`, `recurrent_gemma`, `xlstm`) are not "
            "counted. Methods for components, other targets, shared bases and the removal of "
            "layers and experts need a row. `fused` stores each matrix as a low-rank pair, from "
            "the centered moments of its inputs. The refit solves the matrices in the order in "
            "which a layer runs them, for the outputs of the dense matrices; those that add their "
            "outputs to the residual stream also make up for the difference of the streams. "
            "`zamba2` has no row because a row could do no more: several of its layers share a "
            "block of attention and MLP, to which each adds its own low-rank pairs. The block and "
            "the pairs stay dense; each of these layers counts the cache of the block. The same "
            "tests as for a row show that it keeps its logits when unchanged layers are written "
            "back, and, compressed, with a cache, in a left-padded batch and in an export."
            "\n\nBefore a calibration, the model runs layer by layer on a few tokens. It is "
            "refused if the states differ from those of the complete model, if a token attends "
            "to later tokens, if a layer runs more than once, or if no input reaches a matrix. "
            "`tests/models/test_by_structure.py` contains the tests of a family of each kind: "
            "attention, state space and convolution.\n\n"
        )
        + types_table()
        + wrap(
            "\n## Unsupported models\n\n"
            "These models raise an error before any computation:\n\n"
            + "\n".join(conditions + unsupported)
            + f"\n- the sequential refit for {additions}: a layer adds more terms to the stream "
            "than the outputs of its attention and its MLP\n"
            f"- slicing the residual stream of {never_sliced}{sliced_if}, and of models of images "
            "and text: it needs layers that are an attention and then an MLP, each "
            "`x + f(norm(x))`\n"
        )
    )


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    if "--measure" in sys.argv:
        named = sys.argv[sys.argv.index("--measure") + 1 :] or list(ARCHITECTURES)
        results = json.loads(RECORD.read_text(encoding="utf-8")) | measure(named)
        current = {name: results[name] for name in ARCHITECTURES if name in results}
        TYPES.write_text(
            json.dumps(causal_types(), indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )
        RECORD.write_text(json.dumps(current, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
