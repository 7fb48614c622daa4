"""Write docs/architectures.md from the rows of the table: python scripts/architectures.py [--check]"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lrcore.models.architectures import ARCHITECTURES, MULTIMODAL, Architecture

PAGE = Path(__file__).resolve().parents[1] / "docs" / "architectures.md"
HEAD = """# Model families

Written by `scripts/architectures.py` from the rows in `lrcore/models/architectures.py`; do not edit by hand. For every row,
`tests/test_architectures.py` makes a tiny random-weight model of that family and checks, with methods on matrices and on components:
unchanged layers written back give bit-identical logits; full rank gives the dense model; compressed attention with whole heads gives
the native attention, with and without cache and under left padding; a compressed model gives the same with and without cache, and
alone or in a left-padded batch; rebuilt from its description and weights it is bit-identical. `tests/test_export.py` exports each
and loads it in a process that cannot see this project: bit-identical but for models with experts, whose grouped products differ in
the last bit with the place of a weight in memory.

`model_type` is that of `config.json`. *QK, OV, MLP* say how the methods on components solve them: *free* by any linear map per head,
*pairs* by whole rotary pairs, *kept* not at all. Methods on matrices factor every projection of every family. *Fused* matrices are
read apart, and left apart in the compressed model only where one of their parts has changed. *Stock*: an export with nothing but
narrower MLPs needs no code of ours.

| model_type | QK | OV | MLP | fused | stock | scores | runs with | notes |
|---|---|---|---|---|---|---|---|---|
"""


def line(name: str, row: Architecture) -> str:
    """One family as a row of the table."""
    qk = "kept" if row.norms else "pairs" if row.position == "rotary" else "free"
    fused = [part for part, there in (("qkv", row.qkv != "apart"), ("gate and up", row.gate is not None and row.gate == row.up)) if there]
    scores = ["capped"] if row.softcap else []
    scores += ["windows of its own"] if row.window else []
    cells = [f"`{name}`", qk, "free", "kept (experts)" if row.experts else "neurons", ", ".join(fused) or "-", "yes" if row.width else "no",
             ", ".join(scores) or "-", row.kernel, row.note or "-"]  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def page() -> str:
    """The whole page."""
    refused = [f"- `{name}` only with {', '.join(f'`{field}` {value!r}' for field, value in row.requires.items())}" for name, row in
               ARCHITECTURES.items() if row.requires]  # fmt: skip
    after = ", ".join(f"`{name}`" for name, row in ARCHITECTURES.items() if row.norm_after)
    return (
        HEAD
        + "".join(line(name, row) for name, row in ARCHITECTURES.items())
        + "\n## Images and text\n\n"
        + ", ".join(f"`{name}`" for name in MULTIMODAL)
        + ": the language model inside, of a family above,\nis found and compressed; the rest is left "
        + "as it is to the bit (`tests/test_multimodal.py`). Calibration and evaluation read text only.\n"
        + "\n## What is refused\n\nOne line says so, before anything is computed:\n\n"
        + "\n".join(refused)
        + f"\n- the sequential refit for {after}: they norm what a component gives before adding it, so no refit is linear there\n"
    )


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
