"""A GGUF file run by llama.cpp, where its Python package is installed."""

import math

import pytest

xllamacpp = pytest.importorskip(
    "xllamacpp", reason="llama.cpp is not installed (pip install xllamacpp)"
)


class LlamaCpp:
    """One file, on one thread."""

    def __init__(self, path) -> None:
        parameters = xllamacpp.CommonParams()
        parameters.model.path, parameters.n_ctx, parameters.n_parallel = str(path), 128, 1
        parameters.cpuparams.n_threads, parameters.warmup, parameters.verbosity = 1, False, 0
        self.server = xllamacpp.Server(parameters)

    def complete(self, prompt, tokens, likeliest=1, ends=True):
        """What it says after a prompt (a text, or numbers of tokens), greedily; and of each token
        the log-probabilities of the likeliest. ends: the model may end before so many tokens.
        """
        request = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "n_probs": likeliest}
        answer = self.server.handle_completions(request | {"ignore_eos": not ends})
        return answer["choices"][0]["logprobs"]["content"], answer["usage"]["prompt_tokens"]

    def greedy(self, text, tokens):
        """Numbers of the tokens after a text, and how many tokens the text has."""
        predictions, count = self.complete(text, tokens)
        return [prediction["id"] for prediction in predictions], count

    def perplexity(self, ids, vocabulary):
        """Of tokens given as numbers, each after all before it."""
        loss = 0.0
        for position in range(1, len(ids)):
            ((prediction,), _) = self.complete(ids[:position], 1, vocabulary)
            log_probabilities = {
                alternative["id"]: alternative["logprob"]
                for alternative in prediction["top_logprobs"]
            }
            loss -= log_probabilities[ids[position]]
        return math.exp(loss / (len(ids) - 1))
