"""Fixtures with tiny random models, plain text, and the reference data if it is present."""

import gc
import os
import shutil
import zlib
from itertools import compress
from pathlib import Path

os.environ.setdefault(
    "HF_HUB_OFFLINE", "1"
)  # tests work offline; read when huggingface_hub is imported
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
# Two threads, as on the smallest machine, or one if pytest-xdist runs two tests at once. Set in the
# environment, so that subprocesses compute the same bits.
os.environ["OMP_NUM_THREADS"] = str(2 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) or 1)
os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # threads that spin while they wait slow down tiny products on a busy machine

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

import lrcore

SENTENCES = [
    "Once upon a time there was a little girl who had a red ball.",
    "Tom and his sister went to the park to look for the small dog.",
    "“Where is my kite?” asked Ben. It was in the tall tree.",
    "She gave three apples to her friend, and two were left in the basket.",
]
VOCABULARY = 300


def pytest_collection_finish() -> None:
    """Exclude imported objects, about a million, from later garbage collections."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked `soak` or `cluster` unless `-m` names the marker. Cases of parametrized
    tests that `one_in` leaves out become `soak` tests.
    """
    for item in _left_out(items):
        item.add_marker("soak")
    for marker in ("soak", "cluster"):
        if marker not in config.option.markexpr:
            is_deselected = [item.get_closest_marker(marker) is not None for item in items]
            config.hook.pytest_deselected(items=list(compress(items, is_deselected)))
            items[:] = compress(items, (not deselected for deselected in is_deselected))


def _left_out(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the cases that `one_in` leaves out. With `each`, the name of a parameter, one case of
    each of its values remains; of a tuple, the first entry counts, such as the name of a method.
    """
    left_out, kept = [], set()
    for item in items:
        marker = item.get_closest_marker("one_in") if "[" in item.name else None
        if marker is None:
            continue
        value = item.callspec.params.get(marker.kwargs.get("each"))
        case = (item.nodeid.partition("[")[0], value[0] if isinstance(value, tuple) else value)
        if zlib.crc32(item.name.encode()) % marker.args[0]:
            left_out.append((item, case))
        else:
            kept.add(case)
    remaining = []
    for item, case in left_out:
        if case[1] is None or case in kept:
            remaining.append(item)
        kept.add(case)
    return remaining


@pytest.fixture(scope="session", autouse=True)
def _calibration_cache(tmp_path_factory):
    """Write the calibrations of the tests to a temporary cache folder."""
    previous_cache = os.environ.get("LRCORE_CACHE")
    os.environ["LRCORE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.pop("LRCORE_CACHE")
    if previous_cache is not None:
        os.environ["LRCORE_CACHE"] = previous_cache


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def reference() -> Path:
    """Return the folder of real models and real text; without it, skip the test."""
    folder = os.environ.get("LRCORE_REFERENCE")
    if not folder:
        pytest.skip("LRCORE_REFERENCE does not name the folder with reference models and text")
    return Path(folder)


@pytest.fixture(scope="session")
def story_text() -> str:
    """Return about 6,000 characters of varied plain text."""
    order = torch.randint(
        len(SENTENCES), (100,), generator=torch.Generator().manual_seed(1)
    ).tolist()
    return " ".join(SENTENCES[i] for i in order)


@pytest.fixture(scope="session")
def story_file(tmp_path_factory, story_text) -> Path:
    path = tmp_path_factory.mktemp("text") / "story.txt"
    path.write_text(story_text, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory) -> Path:
    """Return a folder with a Llama: grouped queries (4 / 2 heads of 8), rotary embeddings, gated
    MLP, no biases, tied embeddings, 3 layers.
    """
    return _save(
        LlamaForCausalLM(_llama(tie_word_embeddings=True)), tmp_path_factory.mktemp("tiny-llama")
    )


CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message.role }}> {{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


@pytest.fixture(scope="session")
def chat_llama(tiny_llama, tmp_path_factory) -> Path:
    """Return a folder with the Llama and a chat template: <s> begins a conversation, </s> ends an
    answer.
    """
    folder = tmp_path_factory.mktemp("chat") / "chat-llama"
    shutil.copytree(tiny_llama, folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny_llama_bias(tmp_path_factory) -> Path:
    """Return a folder with the same Llama, nonzero biases on all projections, and untied
    embeddings.
    """
    config = _llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
    return _save(LlamaForCausalLM(config), tmp_path_factory.mktemp("tiny-llama-bias"))


@pytest.fixture(scope="session")
def tiny_opt(tmp_path_factory) -> Path:
    """Return a folder with an OPT: 4 full heads of 8, learned positions, biases, ReLU, 2 layers."""
    config = OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        init_std=0.2,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        dropout=0.0,
    )
    return _save(OPTForCausalLM(config), tmp_path_factory.mktemp("tiny-opt"))


@pytest.fixture
def small_of(story_file):
    """Return a function that compresses the model of a folder by a method."""

    def make(folder, method, **changes):
        requested = {"samples": 4, "seq_len": 32, "ratio": 0.5} | changes
        return lrcore.compress(
            lrcore.load(str(folder)),
            lrcore.Recipe(str(folder), data=str(story_file), method=method, **requested),
        )

    return make


@pytest.fixture
def care(small_of, tiny_llama):
    return small_of(tiny_llama, "care")


def _llama(**changes) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        **changes,
    )


def _save(network: PreTrainedModel, folder: Path) -> Path:
    """Save a network and its tokenizer after adding noise to all parameters: zero biases and unit
    norms would hide mistakes.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.2 if parameter.dim() > 1 else parameter + noise * 0.1)
    network.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer, which splits characters beyond ASCII into several
    tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        [text.replace("“", "").replace("”", "") for text in SENTENCES], trainer
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
