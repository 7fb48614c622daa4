"""Training texts of the demo models: built-in stories, Python's documentation, and public texts."""

import random
import re
from pathlib import Path

import numpy
import stories
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from lrcore.data import python_docs

EOS = "<|endoftext|>"
VOCABULARY = 3072
CONTEXT = 512
SEED = 20240531
STORY_SHARE = 0.55
# Train splits only, and the number of times that each is read: small texts that resemble the
# stories or the documentation are repeated.
REFERENCE = {
    "wikitext2.train.txt": 1,
    "openwebtext.sample.txt": 1,
    "tinystories.calibration.txt": 4,
    "wikipedia.sample.txt": 1,
}
DOCS_TIMES = 4
_ARTICLE = re.compile(r"\n(?= = [^=\n]+ = \n)")


def reference_documents(folder: Path | None) -> dict[str, list[str]]:
    """Return the documents of each public text in a folder; {} without a folder."""
    if folder is None:
        return {}
    return {name: _split(name, (folder / name).read_text(encoding="utf-8")) for name in REFERENCE}


def _split(name: str, text: str) -> list[str]:
    if name.startswith("wikitext2"):
        parts = _ARTICLE.split(text)
    else:
        parts = text.split(EOS if EOS in text else "\n")
    # Line breaks at the edges are removed. WikiText keeps its blank lines, as in the test split.
    return [part.strip("\n") for part in parts if part.strip()]


def train_tokenizer(reference: Path | None) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the training texts; encoding adds no special tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [stories.documents("train", 4000), python_docs.documents("train")]
    texts += [
        documents[:: 1 + len(documents) // 3000]
        for documents in reference_documents(reference).values()
    ]
    bpe.train_from_iterator((text for group in texts for text in group), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=EOS,
        eos_token=EOS,
        pad_token=EOS,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def build_stream(
    tokenizer, tokens: int, reference: Path | None
) -> tuple[numpy.ndarray, dict[str, int]]:
    """Return a shuffled stream of token ids (uint16) and the tokens per source.

    Each document ends with the end-of-text token.
    """
    pieces: list[numpy.ndarray] = []
    sources: dict[str, int] = {}

    def add(source: str, documents: list[str], times: int = 1) -> None:
        encoded = _encode(tokenizer, documents)
        sources[source] = times * sum(map(len, encoded))
        pieces.extend(encoded * times)

    add("python-docs/train", python_docs.documents("train"), DOCS_TIMES)
    for name, documents in reference_documents(reference).items():
        add(
            name,
            _in_threes(documents) if name.startswith("tinystories") else documents,
            REFERENCE[name],
        )
    # Other texts are limited to their share; stories fill the remainder up to the requested length.
    other_tokens = sum(sources.values())
    limit = int(tokens * (1 - STORY_SHARE))
    if other_tokens > limit:
        random.Random(SEED).shuffle(pieces)
        pieces[:] = _first_tokens(pieces, limit)
        sources = {name: count * limit // other_tokens for name, count in sources.items()}
    missing = tokens - sum(map(len, pieces))
    per_story = numpy.mean(
        [len(ids) for ids in _encode(tokenizer, stories.documents("train", 300))]
    )
    add(
        "stories/train",
        _in_threes(stories.documents("train", int(1.02 * missing / per_story) + 100)),
    )
    random.Random(SEED).shuffle(pieces)
    stream = numpy.concatenate(pieces)
    return stream[:tokens], sources


def _encode(tokenizer, documents: list[str]) -> list[numpy.ndarray]:
    batch = tokenizer.backend_tokenizer.encode_batch(documents, add_special_tokens=False)
    return [
        numpy.array([*encoding.ids, tokenizer.eos_token_id], dtype=numpy.uint16)
        for encoding in batch
    ]


def _in_threes(documents: list[str]) -> list[str]:
    # Evaluation joins stories by a blank line, so some training documents must do so, too.
    rng, joined, i = random.Random(SEED), [], 0
    while i < len(documents):
        size = rng.choice((1, 1, 2, 3))
        joined.append("\n\n".join(documents[i : i + size]))
        i += size
    return joined


def _first_tokens(pieces: list[numpy.ndarray], limit: int) -> list[numpy.ndarray]:
    selected, total = [], 0
    for piece in pieces:
        if total + len(piece) <= limit:
            selected.append(piece)
            total += len(piece)
    return selected


def windows(stream: numpy.ndarray, seq_len: int, seed: int) -> numpy.ndarray:
    """Return all windows of seq_len + 1 tokens (inputs and shifted targets) in shuffled order.

    Neighboring windows share a token.
    """
    count = (len(stream) - 1) // seq_len
    rows = numpy.stack([stream[i * seq_len : (i + 1) * seq_len + 1] for i in range(count)])
    return rows[numpy.random.default_rng(seed).permutation(count)]
