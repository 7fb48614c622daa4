"""A GGUF file run by llama.cpp, where its Python package is installed."""

import math

import pytest

xllamacpp = pytest.importorskip(
    "xllamacpp", reason="llama.cpp is not installed (pip install xllamacpp)"
)


class LlamaCpp:
    """One file, on one thread."""

    def __init__(self, path) -> None:
        wanted = xllamacpp.CommonParams()
        wanted.model.path, wanted.n_ctx, wanted.n_parallel = str(path), 128, 1
        wanted.cpuparams.n_threads, wanted.warmup, wanted.verbosity = 1, False, 0
        self.server = xllamacpp.Server(wanted)

    def complete(self, prompt, tokens, likeliest=1, ends=True):
        """What it says after a prompt (a text, or numbers of tokens), greedily; and of each token
        the log-probabilities of the likeliest. ends: the model may end before so many tokens.
        """
        asked = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "n_probs": likeliest}
        answer = self.server.handle_completions(asked | {"ignore_eos": not ends})
        return answer["choices"][0]["logprobs"]["content"], answer["usage"]["prompt_tokens"]

    def greedy(self, text, tokens):
        """Numbers of the tokens after a text, and how many tokens the text has."""
        said, count = self.complete(text, tokens)
        return [one["id"] for one in said], count

    def perplexity(self, ids, vocabulary):
        """Of tokens given as numbers, each after all before it."""
        loss = 0.0
        for place in range(1, len(ids)):
            ((one,), _) = self.complete(ids[:place], 1, vocabulary)
            found = {each["id"]: each["logprob"] for each in one["top_logprobs"]}
            loss -= found[ids[place]]
        return math.exp(loss / (len(ids) - 1))
