"""Test exports of all structures in other libraries, for docs/serving.md.

    python scripts/libraries.py FOLDER [MODEL ...]       default: demo-llama (minutes) and
                                                         smollm2-135m (an hour); needs 4 GB of disk

FOLDER holds a virtual environment with the libraries, which also contains the packages of this
environment. Each structure of a model is exported and loaded by transformers or the library. A cell
is "yes" if the check in the function of its row passed. `--inside` marks the call in the virtual
environment.
"""

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from environments import environment, parser_of  # noqa: E402 (after the path)
from export_targets import MODELS, PAGE, STRUCTURES, structures  # noqa: E402 (after the path)

import lrcore  # noqa: E402 (after the path)
from benchmarks.report import log, table, write_section  # noqa: E402 (after the path)

PROMPT, SHORT = "Once upon a time there was", "The dog"
TOKENS, STEPS = 12, 4
RATE, RATE_OF_ALL = 1e-3, 1e-4  # of adapters, and of all weights
SAME = 1e-4  # tolerated change of logits, relative to the largest
WRONG = 0.5  # relative error of a product that uses other numbers than the rounded matrix
STORY = "Once upon a time there was a dog who liked to run in the park. " * 4
# In addition to requirements-dev.txt
INSTALLED = ("trl", "torchao", "bitsandbytes", "lm-eval", "onnx", "onnxscript", "onnxruntime")
LIBRARIES = (
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "torchao",
    "bitsandbytes",
    "lm_eval",
    "onnxruntime",
)
STANDARD = "narrower MLPs, even"  # exported without custom code


def load(folder: Path, **options: Any) -> tuple[Any, Any]:
    """Return network and tokenizer of an export; the tokenizer pads on the left."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **options)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.pad_token or tokenizer.eos_token, "left"
    return network.eval(), tokenizer


@torch.inference_mode()
def logits(network: Any, tokenizer: Any) -> torch.Tensor:
    result: torch.Tensor = network(**tokenizer(PROMPT, return_tensors="pt")).logits
    return result


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if logits [1, tokens, vocabulary] are the same up to rounding."""
    return bool((a - b).abs().max() <= SAME * b.abs().max())


def greedy_tokens(network: Any, tokenizer: Any, *texts: str) -> list[list[int]]:
    """Return greedy tokens after each text, computed in a batch."""
    inputs = tokenizer(list(texts), return_tensors="pt", padding=True)
    options = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    return [row[-TOKENS:].tolist() for row in network.generate(**inputs, **options)]


def pipeline(folder: Path) -> bool:
    """Check that a pipeline continues a text as `generate` does."""
    from transformers import pipeline

    generate = pipeline("text-generation", model=str(folder), trust_remote_code=True)
    options = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    text = generate(PROMPT, **options, return_full_text=False)[0]["generated_text"]
    network, tokenizer = load(folder)
    ids = greedy_tokens(network, tokenizer, PROMPT)[0]
    return bool(text == tokenizer.decode(ids, skip_special_tokens=True))


def padded(folder: Path) -> bool:
    """Check that two prompts give the same tokens in a batch and separately."""
    export = load(folder)
    separate = greedy_tokens(*export, PROMPT) + greedy_tokens(*export, SHORT)
    return greedy_tokens(*export, PROMPT, SHORT) == separate


def placed(folder: Path) -> bool:
    """Check that `device_map` does not change the logits."""
    placed, plain = load(folder, device_map="auto"), load(folder)
    return torch.equal(logits(*placed), logits(*plain))


def compiled(folder: Path) -> bool:
    """Check that `torch.compile` does not change the logits."""
    network, tokenizer = load(folder)
    before = logits(network, tokenizer)
    return same(logits(torch.compile(network), tokenizer), before)


def saved_again(folder: Path) -> bool:
    """Check that transformers and `lrcore.load` read the files of `save_pretrained`."""
    network, tokenizer = load(folder)
    saved = folder / "again"
    network.save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    expected, model = logits(network, tokenizer), lrcore.load(saved)
    results = (logits(*load(saved)), logits(model.network, model.tokenizer))
    return all(torch.equal(result, expected) for result in results)


def trained(folder: Path, adapters: Any = None) -> tuple[Any, bool]:
    """Run steps of SFTTrainer on a text; return the network and whether its loss decreased."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    network, tokenizer = load(folder)
    config = SFTConfig(
        output_dir=str(folder / "steps"),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        learning_rate=RATE if adapters else RATE_OF_ALL,
        max_length=64,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    texts = Dataset.from_dict({"text": [STORY] * 2 * STEPS})
    trainer = SFTTrainer(
        network, config, train_dataset=texts, processing_class=tokenizer, peft_config=adapters
    )
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return trainer.model.eval(), losses[-1] < losses[0]


def tuned(folder: Path) -> bool:
    """Check that the loss decreases and that the saved model gives the same logits."""
    network, has_improved = trained(folder)
    tokenizer, out = load(folder)[1], folder / "tuned"
    network.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return has_improved and torch.equal(logits(*load(out)), logits(network, tokenizer))


def adapted(folder: Path) -> bool | str:
    """Train LoRA on all linear modules; check loss, and logits after merging and saving."""
    from peft import LoraConfig
    from peft.utils.error import NoMatchingPeftModuleError

    config = LoraConfig(r=4, task_type="CAUSAL_LM", target_modules="all-linear")
    try:
        network, has_improved = trained(folder, config)
    except NoMatchingPeftModuleError:
        return "nothing to train"
    tokenizer, out = load(folder)[1], folder / "merged"
    before = logits(network, tokenizer)
    network.merge_and_unload().save_pretrained(out)
    tokenizer.save_pretrained(out)
    return has_improved and same(logits(*load(out)), before)


def merged(folder: Path) -> bool | str:
    """Check that nonzero LoRA on all linear modules changes the logits, and survives merging."""
    from peft import LoraConfig, get_peft_model
    from peft.utils.error import NoMatchingPeftModuleError

    torch.manual_seed(0)
    network, tokenizer = load(folder)
    plain, out = logits(network, tokenizer), folder / "lora"
    config = LoraConfig(
        r=4, task_type="CAUSAL_LM", target_modules="all-linear", init_lora_weights=False
    )
    try:
        adapted = get_peft_model(network, config).eval()
    except NoMatchingPeftModuleError:
        return "nothing to train"
    with_adapters = logits(adapted, tokenizer)
    adapted.merge_and_unload().save_pretrained(out)
    tokenizer.save_pretrained(out)
    return same(logits(*load(out)), with_adapters) and not same(with_adapters, plain)


def change(network: Any, tokenizer: Any, before: torch.Tensor) -> str:
    """Return the relative change of the logits in the Frobenius norm."""
    relative = float((logits(network, tokenizer) - before).norm() / before.norm())
    return f"{relative:.1%}" if relative else "nothing to round"


def torchao(folder: Path) -> str:
    """Return the change of the logits by 8-bit weights."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    network, tokenizer = load(folder)
    before = logits(network, tokenizer)
    quantize_(network, Int8WeightOnlyConfig())
    return change(network, tokenizer, before)


def bitsandbytes(folder: Path) -> str | bool:
    """Return the change of the logits by LLM.int8(); False if products use other numbers."""
    from bitsandbytes.nn import Linear8bitLt
    from transformers import BitsAndBytesConfig

    before = logits(*load(folder))
    network, tokenizer = load(folder, quantization_config=BitsAndBytesConfig(load_in_8bit=True))
    errors: dict[str, float] = {}
    for name, module in network.named_modules():
        if isinstance(module, Linear8bitLt):
            module.register_forward_hook(partial(_measure_error, errors, name))
    result = change(network, tokenizer, before)
    wrong = [name for name, error in errors.items() if not error < WRONG]
    if wrong:
        log(f"products that do not match the 8-bit numbers: {', '.join(wrong)}")
    return result if not wrong else False


def _measure_error(errors: dict[str, float], name: str, module: Any, inputs: Any, out: Any) -> None:
    """Store the relative error of a product, compared with the 8-bit numbers of the matrix."""
    weight = module.state.CB.float() * module.state.SCB.float()[:, None] / 127
    expected = torch.nn.functional.linear(inputs[0].float(), weight, module.bias)
    errors[name] = float((out - expected).norm() / expected.norm())


class Logits(torch.nn.Module):
    """A network without a cache; maps token ids to logits."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.network(ids, use_cache=False).logits
        return result


def onnx(folder: Path) -> bool:
    """Check the logits of ONNX Runtime for a prompt longer than the exported example."""
    from onnxruntime import InferenceSession

    network, tokenizer = load(folder)
    short, long = (tokenizer(text, return_tensors="pt").input_ids for text in (SHORT, PROMPT))
    length = {1: torch.export.Dim("tokens", min=2, max=200)}
    program = torch.onnx.export(Logits(network), (short,), dynamo=True, dynamic_shapes=(length,))
    assert program is not None
    program.save(folder / "model.onnx")
    session = InferenceSession(folder / "model.onnx")
    (result,) = session.run(None, {session.get_inputs()[0].name: long.numpy()})
    return same(torch.from_numpy(result), logits(network, tokenizer))


def lm_eval(folder: Path) -> bool:
    """Check the log-likelihood of a continuation by `--model hf`, to 1e-3."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    request = Instance("loglikelihood", {}, (SHORT, " ran to the park"), 0)
    harness = HFLM(pretrained=str(folder), trust_remote_code=True, device="cpu", batch_size=1)
    ((result, _),) = harness.loglikelihood([request], disable_tqdm=True)
    network, tokenizer = load(folder)
    ids, before = (tokenizer(text).input_ids for text in ("".join(request.args), SHORT))
    with torch.inference_mode():
        logs = network(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = sum(float(logs[at - 1, ids[at]]) for at in range(len(before), len(ids)))
    return abs(result - expected) < 1e-3


USES: dict[str, Callable[[Path], bool | str]] = {
    '`pipeline("text-generation")`': pipeline,
    "left-padded batches": padded,
    '`device_map="auto"`': placed,
    "`torch.compile`": compiled,
    "`save_pretrained` again": saved_again,
    "PEFT, LoRA, merged": merged,
    "trl, `SFTTrainer`": tuned,
    "trl with PEFT, merged": adapted,
    "torchao, 8-bit weights": torchao,
    "bitsandbytes, 8 bits": bitsandbytes,
    "lm-eval, `--model hf`": lm_eval,
    "ONNX, by `torch.onnx.export`": onnx,
}


# Additional libraries that a use needs
NEEDS = {
    "PEFT, LoRA, merged": "peft",
    '`device_map="auto"`': "accelerate",
    "trl, `SFTTrainer`": "trl",
    "trl with PEFT, merged": "trl",
    "torchao, 8-bit weights": "torchao",
    "bitsandbytes, 8 bits": "bitsandbytes",
    "lm-eval, `--model hf`": "lm_eval",
    "ONNX, by `torch.onnx.export`": "onnxruntime",
}


def cell(use: str, model: lrcore.LoadedModel, structure: str) -> str:
    """Return the result of a use for a model."""
    with tempfile.TemporaryDirectory() as parent:
        folder = lrcore.export(model, Path(parent) / "out", standard=structure == STANDARD)
        try:
            result = USES[use](folder)
        except Exception as error:  # any error of a library is a result
            log(f"{structure}, {use}: {type(error).__name__}: {error}")
            return "no"
    return result if isinstance(result, str) else "yes" if result else "no"


def write(name: str) -> None:
    """Test all uses of a model and write its table."""
    columns: dict[str, dict[str, str]] = {}
    for structure, model in structures(name):
        columns[structure] = {use: cell(use, model, structure) for use in USES}
        log(f"{name}, {structure}: {columns[structure]}")
    rows = [[use, *(column[use] for column in columns.values())] for use in USES]
    versions = ", ".join(f"{name.replace('_', '-')} {version(name)}" for name in LIBRARIES)
    words = f"**{name}** in float32 on a CPU; {versions}, torch {torch.__version__.split('+')[0]}."
    write_section(f"libraries {name}", f"{words}\n\n{table(['', *STRUCTURES], rows)}", PAGE)


def main() -> None:
    """Run in the virtual environment of the libraries."""
    arguments = parser_of(__doc__, action="store_true").parse_args()
    if arguments.inside:
        warnings.filterwarnings("ignore")
        for name in arguments.models or MODELS:
            write(name)
        return
    python = environment(arguments.folder.expanduser().absolute() / "venv", INSTALLED)
    call = [python, __file__, arguments.folder, *arguments.models, "--inside"]
    sys.exit(subprocess.run(call, check=False).returncode)


if __name__ == "__main__":
    main()
