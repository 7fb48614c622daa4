"""GGUF files run by llama.cpp, if its Python package is installed."""

import math

import pytest

xllamacpp = pytest.importorskip(
    "xllamacpp", reason="llama.cpp is not installed (pip install xllamacpp)"
)


class LlamaCpp:
    """A GGUF file, run in one thread."""

    def __init__(self, path) -> None:
        parameters = xllamacpp.CommonParams()
        parameters.model.path, parameters.n_ctx, parameters.n_parallel = str(path), 128, 1
        parameters.cpuparams.n_threads, parameters.warmup, parameters.verbosity = 1, False, 0
        self.server = xllamacpp.Server(parameters)

    def complete(self, prompt, tokens, likeliest=1, ends=True):
        """Return the greedy tokens after a prompt (text or token ids) with the log-probabilities of
        the likeliest tokens, and the number of tokens of the prompt. ends: whether the model may
        end earlier.
        """
        request = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "n_probs": likeliest}
        answer = self.server.handle_completions(request | {"ignore_eos": not ends})
        return answer["choices"][0]["logprobs"]["content"], answer["usage"]["prompt_tokens"]

    def greedy(self, text, tokens):
        """Return the ids of the greedy tokens after a text, and the number of tokens of the
        text.
        """
        predictions, count = self.complete(text, tokens)
        return [prediction["id"] for prediction in predictions], count

    def perplexity(self, ids, vocabulary):
        """Return the perplexity of token ids, each predicted from all previous ones."""
        loss = 0.0
        for position in range(1, len(ids)):
            ((prediction,), _) = self.complete(ids[:position], 1, vocabulary)
            log_probabilities = {
                alternative["id"]: alternative["logprob"]
                for alternative in prediction["top_logprobs"]
            }
            loss -= log_probabilities[ids[position]]
        return math.exp(loss / (len(ids) - 1))
