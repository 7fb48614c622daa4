"""What other libraries do with an export of every structure, for docs/serving.md.

    python scripts/libraries.py FOLDER [MODEL ...]       demo-llama (some minutes) and smollm2-135m
                                                         (an hour) by default; needs 4 GB of disk

FOLDER keeps a virtual environment with the libraries, which sees the packages of this one too. Each
structure of a model is exported, and loaded by transformers or the library. A cell is what came
out: "yes" where the check in the function of its row held. `--inside` is what the script
calls itself with there.
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

from bench.page import note, table, write_section  # noqa: E402 (after the path)
from environments import environment, parser_of  # noqa: E402 (after the path)
from where_it_runs import MODELS, PAGE, STRUCTURES, structures  # noqa: E402 (after the path)

import lrcore  # noqa: E402 (after the path)

PROMPT, SHORT = "Once upon a time there was", "The dog"
TOKENS, STEPS = 12, 4
RATE, RATE_OF_ALL = 1e-3, 1e-4  # of adapters, and of all weights
SAME = 1e-4  # how far apart logits may be that are the same, of the largest
WRONG = 0.5  # how far a product of rounded matrices is off where it is of other numbers
STORY = "Once upon a time there was a dog who liked to run in the park. " * 4
# beside requirements-dev.txt
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
STOCK = "narrower MLPs, even"  # exported without code


def load(folder: Path, **how: Any) -> tuple[Any, Any]:
    """The network and the tokenizer of an export, which pads on the left."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **how)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.pad_token or tokenizer.eos_token, "left"
    return network.eval(), tokenizer


@torch.inference_mode()
def logits(network: Any, tokenizer: Any) -> torch.Tensor:
    found: torch.Tensor = network(**tokenizer(PROMPT, return_tensors="pt")).logits
    return found


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether logits [1, tokens, vocabulary] are the same but for rounding."""
    return bool((one - other).abs().max() <= SAME * other.abs().max())


def said(network: Any, tokenizer: Any, *texts: str) -> list[list[int]]:
    """Greedy tokens after each text, in one batch."""
    given = tokenizer(list(texts), return_tensors="pt", padding=True)
    made = network.generate(**given, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)
    return [row[-TOKENS:].tolist() for row in made]


def pipeline(folder: Path) -> bool:
    """It continues a text as `generate` does."""
    from transformers import pipeline

    made = pipeline("text-generation", model=str(folder), trust_remote_code=True)
    how = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    text = made(PROMPT, **how, return_full_text=False)[0]["generated_text"]
    network, tokenizer = load(folder)
    ids = said(network, tokenizer, PROMPT)[0]
    return bool(text == tokenizer.decode(ids, skip_special_tokens=True))


def padded(folder: Path) -> bool:
    """Two prompts in a batch give the tokens that each gives alone."""
    own = load(folder)
    return said(*own, PROMPT, SHORT) == said(*own, PROMPT) + said(*own, SHORT)


def placed(folder: Path) -> bool:
    """The same logits."""
    placed, plain = load(folder, device_map="auto"), load(folder)
    return torch.equal(logits(*placed), logits(*plain))


def compiled(folder: Path) -> bool:
    """The same logits."""
    network, tokenizer = load(folder)
    before = logits(network, tokenizer)
    return same(logits(torch.compile(network), tokenizer), before)


def saved_again(folder: Path) -> bool:
    """`save_pretrained` writes what transformers and `lrcore.load` read as the same."""
    network, tokenizer = load(folder)
    again = folder / "again"
    network.save_pretrained(again)
    tokenizer.save_pretrained(again)
    wanted, here = logits(network, tokenizer), lrcore.load(again)
    both = (logits(*load(again)), logits(here.network, here.tokenizer))
    return all(torch.equal(one, wanted) for one in both)


def trained(folder: Path, adapters: Any = None) -> tuple[Any, bool]:
    """The network after some steps of SFTTrainer on one text; whether its loss fell."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    network, tokenizer = load(folder)
    how = SFTConfig(
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
        network, how, train_dataset=texts, processing_class=tokenizer, peft_config=adapters
    )
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return trainer.model.eval(), losses[-1] < losses[0]


def tuned(folder: Path) -> bool:
    """The loss falls, and what is saved is the same when it is loaded."""
    network, fell = trained(folder)
    tokenizer, out = load(folder)[1], folder / "tuned"
    network.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return fell and torch.equal(logits(*load(out)), logits(network, tokenizer))


def adapted(folder: Path) -> bool | str:
    """LoRA on all linear modules: the loss falls; merged, saved and loaded: the same logits."""
    from peft import LoraConfig
    from peft.utils.error import NoMatchingPeftModuleError

    chosen = LoraConfig(r=4, task_type="CAUSAL_LM", target_modules="all-linear")
    try:
        network, fell = trained(folder, chosen)
    except NoMatchingPeftModuleError:
        return "nothing to train"
    tokenizer, out = load(folder)[1], folder / "merged"
    before = logits(network, tokenizer)
    network.merge_and_unload().save_pretrained(out)
    tokenizer.save_pretrained(out)
    return fell and same(logits(*load(out)), before)


def merged(folder: Path) -> bool | str:
    """LoRA on all linear modules, away from zero, changes the logits; merged, saved and loaded it
    gives those.
    """
    from peft import LoraConfig, get_peft_model
    from peft.utils.error import NoMatchingPeftModuleError

    torch.manual_seed(0)
    network, tokenizer = load(folder)
    plain, out = logits(network, tokenizer), folder / "lora"
    chosen = LoraConfig(
        r=4, task_type="CAUSAL_LM", target_modules="all-linear", init_lora_weights=False
    )
    try:
        adapted = get_peft_model(network, chosen).eval()
    except NoMatchingPeftModuleError:
        return "nothing to train"
    with_them = logits(adapted, tokenizer)
    adapted.merge_and_unload().save_pretrained(out)
    tokenizer.save_pretrained(out)
    return same(logits(*load(out)), with_them) and not same(with_them, plain)


def change(network: Any, tokenizer: Any, before: torch.Tensor) -> str:
    """The change of the logits, in the Frobenius norm; nothing where not one has changed."""
    moved = float((logits(network, tokenizer) - before).norm() / before.norm())
    return f"{moved:.1%}" if moved else "nothing to round"


def torchao(folder: Path) -> str:
    """8-bit weights; the change of the logits."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    network, tokenizer = load(folder)
    before = logits(network, tokenizer)
    quantize_(network, Int8WeightOnlyConfig())
    return change(network, tokenizer, before)


def bitsandbytes(folder: Path) -> str | bool:
    """LLM.int8(); the change of the logits, where products are those of the rounded matrices."""
    from bitsandbytes.nn import Linear8bitLt
    from transformers import BitsAndBytesConfig

    before = logits(*load(folder))
    network, tokenizer = load(folder, quantization_config=BitsAndBytesConfig(load_in_8bit=True))
    apart: dict[str, float] = {}
    for name, module in network.named_modules():
        if isinstance(module, Linear8bitLt):
            module.register_forward_hook(partial(_off_its_numbers, apart, name))
    found = change(network, tokenizer, before)
    wrong = [name for name, error in apart.items() if not error < WRONG]
    if wrong:
        note(f"products that are not those of their 8 bits: {', '.join(wrong)}")
    return found if not wrong else False


def _off_its_numbers(apart: dict[str, float], name: str, module: Any, given: Any, out: Any) -> None:
    """Puts into `apart` how far a product is from that of the 8-bit numbers of a matrix."""
    weight = module.state.CB.float() * module.state.SCB.float()[:, None] / 127
    wanted = torch.nn.functional.linear(given[0].float(), weight, module.bias)
    apart[name] = float((out - wanted).norm() / wanted.norm())


class Logits(torch.nn.Module):
    """A network without a cache: token ids to logits."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.network(ids, use_cache=False).logits
        return found


def onnx(folder: Path) -> bool:
    """The same logits in ONNX Runtime, after a prompt longer than that of the export."""
    from onnxruntime import InferenceSession

    network, tokenizer = load(folder)
    short, long = (tokenizer(text, return_tensors="pt").input_ids for text in (SHORT, PROMPT))
    length = {1: torch.export.Dim("tokens", min=2, max=200)}
    program = torch.onnx.export(Logits(network), (short,), dynamo=True, dynamic_shapes=(length,))
    assert program is not None
    program.save(folder / "model.onnx")
    session = InferenceSession(folder / "model.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: long.numpy()})
    return same(torch.from_numpy(found), logits(network, tokenizer))


def lm_eval(folder: Path) -> bool:
    """`--model hf` gives a continuation the log-likelihood that it has here, to 1e-3."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    asked = Instance("loglikelihood", {}, (SHORT, " ran to the park"), 0)
    theirs = HFLM(pretrained=str(folder), trust_remote_code=True, device="cpu", batch_size=1)
    ((found, _),) = theirs.loglikelihood([asked], disable_tqdm=True)
    network, tokenizer = load(folder)
    ids, before = (tokenizer(text).input_ids for text in ("".join(asked.args), SHORT))
    with torch.inference_mode():
        logs = network(torch.tensor([ids])).logits[0].log_softmax(-1)
    own = sum(float(logs[at - 1, ids[at]]) for at in range(len(before), len(ids)))
    return abs(found - own) < 1e-3


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


# What a use needs beside what this project needs itself
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
    """What came out."""
    with tempfile.TemporaryDirectory() as place:
        folder = lrcore.export(model, Path(place) / "out", stock=structure == STOCK)
        try:
            found = USES[use](folder)
        except Exception as error:  # whatever a library raises is the finding
            note(f"{structure}, {use}: {type(error).__name__}: {error}")
            return "no"
    return found if isinstance(found, str) else "yes" if found else "no"


def written(name: str) -> None:
    """Try everything on a model; write its table."""
    columns: dict[str, dict[str, str]] = {}
    for structure, model in structures(name):
        columns[structure] = {use: cell(use, model, structure) for use in USES}
        note(f"{name}, {structure}: {columns[structure]}")
    rows = [[use, *(own[use] for own in columns.values())] for use in USES]
    known = ", ".join(f"{one.replace('_', '-')} {version(one)}" for one in LIBRARIES)
    words = f"**{name}** in float32 on a CPU; {known}, torch {torch.__version__.split('+')[0]}."
    write_section(f"libraries {name}", f"{words}\n\n{table(['', *STRUCTURES], rows)}", PAGE)


def main() -> None:
    """Read the arguments; go on in the environment of the libraries."""
    given = parser_of(__doc__, action="store_true").parse_args()
    if given.inside:
        warnings.filterwarnings("ignore")
        for name in given.models or MODELS:
            written(name)
        return
    python = environment(given.folder.expanduser().absolute() / "venv", INSTALLED)
    call = [python, __file__, given.folder, *given.models, "--inside"]
    sys.exit(subprocess.run(call, check=False).returncode)


if __name__ == "__main__":
    main()
