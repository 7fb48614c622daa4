"""Small files in the formats of this version: caches of all kinds, cells of a sweep, and the state
of healing.

`python tests/released.py` writes tests/fixtures/released with the current code, after a change of a
format; tests/test_upgrades.py reads it.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import lrcore
from lrcore.cli import listing
from lrcore.compression.calibration.calibrate import Calibration
from lrcore.compression.evidence import latency
from lrcore.compression.solve.factorize import Factorization
from lrcore.data import tokenize
from lrcore.data.tokens import stored
from lrcore.system.cache import text_name
from lrcore.system.errors import Cancelled
from lrcore.system.progress import Progress

FOLDER = Path(__file__).parent / "fixtures" / "released"
STATE = Path("healing.safetensors")
HEALING = lrcore.Healing("story.txt", samples=4, seq_len=8, steps=60, batch=1, test_samples=0)
STOPPED = 55  # a step after the first saved state, see distillation.EVERY
STAGES = ("heal", "distill")  # in which `stops` stops
SMALL = {"data": "story.txt", "samples": 2, "seq_len": 16}
RECIPE = lrcore.Recipe("dense", method="care", ratio=0.3, **SMALL)
SWEEP = lrcore.Sweep(
    RECIPE, methods=("svd", "care"), evaluations=(lrcore.EvaluationSettings("story.txt", 2, 16),)
)


def calibrates() -> Calibration:
    return lrcore.calibrate(lrcore.load("dense"), RECIPE)


def prepares(policy: str, **changes) -> Callable[[], Factorization]:
    recipe = RECIPE.with_(policy=policy, **changes)
    return lambda: lrcore.prepare(lrcore.load("dense"), recipe)


def sweeps() -> list[dict]:
    """Return the rows of a sweep."""
    rows = lrcore.run_sweep(lrcore.load("dense"), SWEEP, "sweep")
    return [row.to_dict() for row in rows]


def heals(progress: Progress | None = None) -> lrcore.LoadedModel:
    model = lrcore.load("small")
    return lrcore.heal(model, HEALING, teacher="dense", state=STATE, progress=progress)


def stops(stage: str, done: int, total: int) -> None:
    if stage in STAGES and done == STOPPED:
        raise Cancelled("simulated kill")


def distills(progress: Progress = stops) -> None:
    """Start a distillation, or resume it, until it is canceled."""
    with suppress(Cancelled):
        recipe = RECIPE.with_(refit="distilled")
        lrcore.compress(lrcore.load("dense"), recipe, progress=progress)


def tokenizes() -> object:
    text, tokenizer = Path("story.txt").read_text(encoding="utf-8"), lrcore.load("dense").tokenizer
    return stored("story", lambda: tokenize(text, tokenizer))


CACHED: dict[str, Callable[[], object]] = {
    "moments": calibrates,
    "gradients": prepares("fisher", method="svd_llm"),
    "spectra": lambda: lrcore.analyze(lrcore.load("dense"), calibrates()).table(0.9),
    "probes": prepares("probed"),
    "latency": prepares("uniform", budget="latency", method="svd_llm"),
    "searches": prepares("mix"),
    "type_searches": prepares("bolaco", method="svd_llm"),
    "gguf": lambda: lrcore.load("dense.gguf"),
    "adapters": lambda: lrcore.load("adapter"),
    "texts": lambda: text_name(["A text in memory.", "And one more."]),
    "tokens": tokenizes,
    "distillations": distills,
    "listings": lambda: listing.cached("methods", lambda: [1, 2]),
}


def on_one_machine(patch: pytest.MonkeyPatch) -> None:
    """Replace the machine and the state of the code in keys by constants."""
    patch.setattr(latency, "_device", lambda model: "a machine")
    patch.setattr(listing, "_state", lambda: "released")


def write_adapter() -> None:
    """Write a LoRA adapter of the dense model."""
    from peft import LoraConfig, get_peft_model

    network = lrcore.load("dense").network
    network.name_or_path = "dense"
    torch.manual_seed(0)
    get_peft_model(network, LoraConfig(r=2, init_lora_weights=False)).save_pretrained("adapter")


def write() -> None:
    """Write all files into the working folder."""
    import conftest
    from gguf_files import write_gguf
    from transformers import LlamaConfig, LlamaForCausalLM

    order = [*conftest.SENTENCES, *conftest.SENTENCES[::-1]]
    Path("story.txt").write_text(" ".join(order * 4), encoding="utf-8")
    config = LlamaConfig(
        vocab_size=conftest.VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    conftest._save(LlamaForCausalLM(config), Path("dense"))
    write_gguf(Path("dense"), Path("dense.gguf"))
    write_adapter()
    with pytest.MonkeyPatch.context() as patch:
        on_one_machine(patch)
        for made in CACHED.values():
            made()
    sweeps()
    lrcore.save(lrcore.compress(lrcore.load("dense"), RECIPE), "small")
    with suppress(Cancelled):
        heals(stops)
    for offloaded_folder in Path("cache").glob("offloaded*"):
        shutil.rmtree(offloaded_folder)


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    os.chdir(FOLDER)
    os.environ["LRCORE_CACHE"] = "cache"
    write()
