"""Peak memory of compressing a random Llama of 1.1 billion parameters from disk, in a separate
process.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lrcore.models.config import without_initialization
from lrcore.models.hub import locate

from .machine import ROOT, machine
from .random_models import write_text
from .report import log, table, write_section
from .timing import timed

SHAPE = {
    "hidden_size": 2048,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "intermediate_size": 5632,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
METHOD, RATIO, SAMPLES, LENGTH, TEXTS = "a3", 0.3, 8, 128, 200
START = (
    "import sys, pandas, torch, transformers, transformers.models.llama.modeling_llama; "
    "sys.stdin.read()"
)


def memory(_models: list[str]) -> None:
    """Compress the model by the command line, follow the process and write the table."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("LRCORE_CACHE")) as parent:
        folder = Path(parent)
        parameters = write_model(folder / "model")
        log(f"{parameters:,} parameters on disk")
        idle = follow([sys.executable, "-c", START], folder, until_quiet=True)
        command = [
            sys.executable,
            "-m",
            "lrcore",
            "compress",
            str(folder / "model"),
            "--offload",
            "--dtype",
            "auto",
            "--device",
            "cpu",
        ]
        write_text(folder / "text.jsonl", TEXTS)
        command += [
            "--data",
            str(folder / "text.jsonl"),
            "--method",
            METHOD,
            "--ratio",
            str(RATIO),
            "--samples",
            str(SAMPLES),
            "--seq-len",
            str(LENGTH),
        ]
        command += ["--out", str(folder / "out"), "--json"]
        peak, seconds = timed(lambda: follow(command, folder))
        compressed_parameters = json.loads((folder / "out" / "report.json").read_text())["account"][
            "parameters"
        ]
    write_section("memory", section(parameters, compressed_parameters, idle, peak, seconds))


def write_model(folder: Path) -> int:
    """Write a folder with random bfloat16 weights and the tokenizer of a demo model.

    Returns the number of parameters.
    """
    with without_initialization():
        network = LlamaForCausalLM._from_config(LlamaConfig(**SHAPE), dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(
                0, 0.02, generator=generator
            ) if parameter.dim() > 1 else parameter.fill_(1)
        network.save_pretrained(folder, max_shard_size="500MB")
    for file in locate("demo-llama").glob("token*"):
        shutil.copy(file, folder)
    return sum(parameter.numel() for parameter in network.parameters())


def follow(command: list[str], folder: Path, until_quiet: bool = False) -> dict[str, int]:
    """Run a process and return peaks in bytes: VmHWM, the resident memory (by the kernel), and
    RssAnon, its anonymous part (read every 10 ms).

    until_quiet: the process waits for input after the imports and is stopped after 30 seconds.
    """
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "LRCORE_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    peaks = {"VmHWM": 0, "RssAnon": 0}
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    if until_quiet:
        threading.Timer(30, process.stdin.close).start()
    while process.poll() is None:
        for name, size in process_memory(process.pid).items():
            peaks[name] = max(peaks[name], size)
        time.sleep(0.01)
    if process.wait() and not until_quiet:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return peaks


def process_memory(pid: int) -> dict[str, int]:
    """Return VmHWM and RssAnon of a process in bytes, see `follow`; {} if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
        values = dict(line.split(":", 1) for line in lines)
        names = values.keys() & {"VmHWM", "RssAnon"}
        return {name: 1024 * int(values[name].split()[0]) for name in names}
    return {}


def section(
    parameters: int,
    compressed_parameters: int,
    idle: dict[str, int],
    peak: dict[str, int],
    seconds: float,
) -> str:
    """Return the table. idle, peak: bytes of the process after its imports and of compressing."""
    size, activations = 2 * parameters, 2 * SAMPLES * LENGTH * SHAPE["hidden_size"]
    limit = 0.4 * size + activations
    rows = [
        ["size at 16 bits per number", megabytes(size), ""],
        ["hidden states of the calibration windows", megabytes(activations), ""],
        ["limit: 40 % of the size plus the hidden states", megabytes(limit), fraction(limit, size)],
        [
            "**peak of the process** (VmHWM)",
            f"**{megabytes(peak['VmHWM'])}**",
            f"**{fraction(peak['VmHWM'], size)}**",
        ],
        [
            "peak of anonymous memory (RssAnon)",
            megabytes(peak["RssAnon"]),
            fraction(peak["RssAnon"], size),
        ],
        [
            "Python after importing torch, transformers and pandas",
            megabytes(idle["VmHWM"]),
            fraction(idle["VmHWM"], size),
        ],
        [
            "peak minus Python",
            megabytes(peak["VmHWM"] - idle["VmHWM"]),
            fraction(peak["VmHWM"] - idle["VmHWM"], size),
        ],
    ]
    verdict = "under the limit" if peak["VmHWM"] < limit else "**over the limit**"
    shape = (
        "{num_hidden_layers} layers, hidden {hidden_size}, intermediate {intermediate_size}, "
        "{num_attention_heads} query and "
    )
    shape += "{num_key_value_heads} kv heads, vocabulary {vocab_size}"
    heading = (
        f"`lrcore compress MODEL --offload --dtype auto --method {METHOD} --ratio {RATIO} "
        f"--samples {SAMPLES} --seq-len {LENGTH}` "
        f"of a Llama of {parameters:,} random bfloat16 parameters (the shape of TinyLlama: "
        f"{shape.format(**SHAPE)}), from shards on disk "
        f"to a folder of {compressed_parameters:,} parameters: {verdict}, in "
        f"{seconds / 60:.0f} minutes ({machine()})."
    )
    return heading + "\n\n" + table(["quantity", "MB", "fraction of the size"], rows)


def megabytes(count: float) -> str:
    """Return bytes in MB."""
    return f"{count / 1e6:,.0f}"


def fraction(count: float, total: float) -> str:
    """Return count / total in percent."""
    return f"{count / total:.1%}"
