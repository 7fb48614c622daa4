"""What the demo models read: our own stories, Python's documentation, and (only if its folder is
given) public text.
"""

import random
import re
from pathlib import Path

import numpy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from lrcore.data import python_docs, stories

EOS = "<|endoftext|>"
VOCABULARY = 3072
CONTEXT = 512
SEED = 20240531
STORY_SHARE = 0.55
# Train splits only. Times read: small sources that resemble the stories or the documentation are
# read more than once.
REFERENCE = {
    "wikitext2.train.txt": 1,
    "openwebtext.sample.txt": 1,
    "tinystories.calibration.txt": 4,
    "wikipedia.sample.txt": 1,
}
DOCS_TIMES = 4
_ARTICLE = re.compile(r"\n(?= = [^=\n]+ = \n)")


def reference_documents(folder: Path | None) -> dict[str, list[str]]:
    """Documents of each public text found in ``folder``; empty without a folder."""
    if folder is None:
        return {}
    return {name: _split(name, (folder / name).read_text(encoding="utf-8")) for name in REFERENCE}


def _split(name: str, text: str) -> list[str]:
    if name.startswith("wikitext2"):
        parts = _ARTICLE.split(text)
    else:
        parts = text.split(EOS if EOS in text else "\n")
    # A lone line break at the edges says nothing; WikiText keeps the blank lines that its test
    # split has too.
    return [part.strip("\n") for part in parts if part.strip()]


def train_tokenizer(reference: Path | None) -> PreTrainedTokenizerFast:
    """Byte-level BPE over the training mix; encoding adds no special tokens."""
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
    """A shuffled stream of ``tokens`` token ids (uint16), every document followed by the
    end-of-text token; and tokens per source.
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
    # Everything but the stories is capped at its share, then stories fill the rest, so that the
    # stream has the asked length.
    others = sum(sources.values())
    limit = int(tokens * (1 - STORY_SHARE))
    if others > limit:
        random.Random(SEED).shuffle(pieces)
        pieces[:] = _first_tokens(pieces, limit)
        sources = {name: count * limit // others for name, count in sources.items()}
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
    # Evaluation joins stories by a blank line. Some training documents do too, or every join would
    # be a surprise to the model.
    rng, joined, i = random.Random(SEED), [], 0
    while i < len(documents):
        size = rng.choice((1, 1, 2, 3))
        joined.append("\n\n".join(documents[i : i + size]))
        i += size
    return joined


def _first_tokens(pieces: list[numpy.ndarray], limit: int) -> list[numpy.ndarray]:
    kept, total = [], 0
    for piece in pieces:
        if total + len(piece) <= limit:
            kept.append(piece)
            total += len(piece)
    return kept


def windows(stream: numpy.ndarray, seq_len: int, seed: int) -> numpy.ndarray:
    """All windows of ``seq_len + 1`` tokens (inputs and shifted targets), one token shared by
    neighbours, in shuffled order.
    """
    count = (len(stream) - 1) // seq_len
    rows = numpy.stack([stream[i * seq_len : (i + 1) * seq_len + 1] for i in range(count)])
    return rows[numpy.random.default_rng(seed).permutation(count)]
