"""Compression by the code of other projects, beside the same compression by this project.

Each project is installed into an environment of its own, in build/peers/. Its script (see
peer_scripts/) reads the same model and, if the method needs them, the same calibration windows, and
writes the model with the rounded or pruned weights. Its perplexity is measured by this project. The
processor time and the peak memory are those of the whole process, imports and loading included.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

import lrcore
from lrcore.compression.calibration.calibrate import make_calibration_windows

from .machine import ROOT, machine
from .memory import process_memory
from .report import log, table, write_section
from .subjects import REAL_MODEL, Subject, real_subject, reference_text

ENVIRONMENTS = ROOT / "build" / "peers"
RESULTS = ENVIRONMENTS / "results.json"
SCRIPTS = Path(__file__).parent / "peer_scripts"
TORCH = "torch==2.13.0"  # of this project, so that all have the same kernels


@dataclass(frozen=True)
class Project:
    """A project. requirements: for pip, without torch. script: in peer_scripts/."""

    name: str
    requirements: tuple[str, ...] = ()
    script: str = ""


@dataclass(frozen=True)
class Task:
    """A compression. key: its name in the scripts. command and arguments: of `python -m lrcore`,
    without model, folder and text. peers: the projects that have it. reads_text: whether it is
    calibrated.
    """

    name: str
    key: str
    command: str
    arguments: tuple[str, ...]
    peers: tuple[Project, ...]
    reads_text: bool


@dataclass(frozen=True)
class Run:
    """perplexity: of the compressed model. seconds: of processor time. memory: peak, in bytes."""

    perplexity: float
    seconds: float
    memory: int


OURS = Project("Low-Rank Workbench")
LLM_COMPRESSOR = Project("llm-compressor", ("llmcompressor==0.14.0.1",), "llm_compressor.py")
HQQ = Project("hqq", ("hqq==0.2.8.post1", "transformers"), "hqq_project.py")
NNCF = Project("nncf", ("nncf==3.4.0", "transformers"), "nncf_project.py")
FOUR_BITS = ("--bits", "4", "--group", "64")
GPTQ = (*FOUR_BITS, "--quantizer", "gptq")
WANDA = ("--criterion", "wanda")
GROUPS = "4 bits, groups of 64"
TASKS = (
    Task(f"GPTQ, {GROUPS}", "gptq", "quantize", GPTQ, (LLM_COMPRESSOR,), True),
    Task("SparseGPT, 2:4", "sparsegpt", "sparsify", (), (LLM_COMPRESSOR,), True),
    Task("Wanda, 2:4", "wanda", "sparsify", WANDA, (LLM_COMPRESSOR,), True),
    Task(f"without data, {GROUPS}", "hqq", "quantize", FOUR_BITS, (HQQ, NNCF), False),
)


def peers(models: list[str]) -> None:
    """Make the missing measurements, and write the table after each. Needs an idle machine."""
    if (text := reference_text(models)) is None:
        return
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    subject = real_subject(text)
    for task in TASKS:
        for project in (OURS, *task.peers):
            if f"{task.name} {project.name}" in results:
                continue
            log(f"{task.name} by {project.name}")
            with tempfile.TemporaryDirectory(dir=ENVIRONMENTS) as parent:
                run = measure(task, project, subject, Path(parent))
            results[f"{task.name} {project.name}"] = asdict(run)
            RESULTS.write_text(json.dumps(results, indent=1, allow_nan=False))
            write_section("peers", section(results, subject))


def measure(task: Task, project: Project, subject: Subject, folder: Path) -> Run:
    """Compress the model into a folder in a process of its own, and evaluate the result."""
    out = folder / "out"
    if project is OURS:
        command = [sys.executable, "-m", "lrcore", task.command, REAL_MODEL, str(out)]
        command += [*task.arguments, *(text_arguments(subject) if task.reads_text else [])]
    else:
        windows = folder / "windows.safetensors"
        write_inputs(subject, folder / "model", windows)
        command = [str(environment(project)), str(SCRIPTS / project.script), task.key]
        command += [str(path) for path in (folder / "model", windows, out)]
    seconds, memory = follow(command, folder)
    result = lrcore.evaluate(lrcore.load(str(out)), subject.evaluation)
    return Run(result.perplexity, seconds, memory)


def text_arguments(subject: Subject) -> list[str]:
    """Return the arguments of `python -m lrcore` for the calibration windows of a subject."""
    recipe = subject.recipe
    sizes = ["--samples", str(recipe.samples), "--seq-len", str(recipe.seq_len)]
    return ["--data", recipe.data, *sizes, "--seed", str(recipe.seed)]


def write_inputs(subject: Subject, folder: Path, windows: Path) -> None:
    """Write the model as a folder of transformers, and the calibration windows [samples, seq_len]
    that this project reads.
    """
    model = lrcore.load(REAL_MODEL)
    model.network.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    tokens = make_calibration_windows(model, subject.recipe).tokens
    save_file({"tokens": tokens.contiguous()}, windows)


def environment(project: Project) -> Path:
    """Return the Python of a project's environment, which is made if it does not exist."""
    folder = ENVIRONMENTS / project.name
    python = folder / "bin" / "python"
    complete = folder / "complete"  # the installation was not interrupted
    if not complete.exists():
        log(f"installing {project.name}")
        venv.create(folder, clear=True, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", TORCH, *project.requirements]
        subprocess.run(pip, check=True)
        complete.touch()
    return python


def follow(command: list[str], folder: Path) -> tuple[float, int]:
    """Run a process with one thread and an empty cache.

    Returns its processor time in seconds and its peak memory in bytes. Raises CalledProcessError if
    it fails.
    """
    settings = {"PYTHONPATH": str(ROOT)} if command[0] == sys.executable else {}
    settings |= {"LRCORE_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    peak = 0
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            command, env=os.environ | settings, stdout=output, stderr=subprocess.STDOUT
        )
        while not (ended := os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            # `ru_maxrss` would include the memory of this process, from which it is forked
            peak = max(peak, process_memory(process.pid).get("VmHWM", 0))
            time.sleep(0.05)
    assert ended is not None
    _, status, usage = os.wait4(process.pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        log((folder / "output.txt").read_text()[-2000:])
        raise subprocess.CalledProcessError(code, command)
    return usage.ru_utime + usage.ru_stime, peak


def section(results: dict[str, Any], subject: Subject) -> str:
    """Return the table of all measurements."""
    rows = []
    for task in TASKS:
        for project in (OURS, *task.peers):
            if cell := results.get(f"{task.name} {project.name}"):
                run = Run(**cell)
                by = project.requirements[0] if project.requirements else project.name
                sizes = f"{run.seconds:.0f}", f"{run.memory / 1e9:.2f}"
                rows.append([task.name, by, f"{run.perplexity:.2f}", *sizes])
    header = ["compression", "by", "perplexity", "processor time, s", "peak memory, GB"]
    recipe = subject.recipe
    caption = (
        f"{REAL_MODEL}; calibration by {recipe.samples} windows of {recipe.seq_len} tokens of "
        "WikiText-2, processes with one thread, their imports included; perplexity on "
        f"{subject.windows} windows of {subject.length} tokens of the test text; "
        f"{machine()}."
    )
    return f"{caption}\n\n{table(header, rows)}"
