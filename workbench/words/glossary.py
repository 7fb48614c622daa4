"""Explanations of terms, which the page shows at the marked terms.

A term is marked by `views/term_markup.py`, and `assets/terms.js` shows its explanation.
"""

import re

# {term: explanation}. Upper and lower case do not matter: qk is a component, too.
TERMS = {
    "QK": "Query and key projections of a layer. Their product gives the attention scores.",
    "OV": "Value and output projections of a layer. Their product maps attended "
    "tokens to the output of the layer.",
    "MLP": "The feed-forward part of a layer: its gate, up and down projections.",
    "KL": "Kullback-Leibler divergence from the predictions of the dense model to those of "
    "the compressed model, in nats per token. 0: equal predictions.",
    "nats": "Unit of loss and information, with the natural logarithm. 0.01 nats per token more "
    "loss is 1 % more perplexity.",
    "perplexity": "Exponential of the mean loss per token. Lower is better; 1 means that each "
    "token was predicted with certainty.",
    "Block Influence": "One minus the cosine similarity of a layer's input and output (ShortGPT). "
    "Near 0: the layer hardly changes the hidden states.",
    "energy": "Sum of the squared singular values. The energy that a truncation removes is its "
    "squared error.",
    "singular values": "Strengths of the independent directions of a matrix, in descending order. "
    "A low-rank approximation keeps the largest.",
    "uniform ranks": "Each component of each layer keeps the same share of its rank. For ranks "
    "that differ by layer, choose another policy in the expert settings.",
    "effective rank": "Exponential of the entropy of the normalized singular values: the number of "
    "directions that matter if all mattered equally.",
    "stable rank": "Sum of the squared singular values divided by the largest square.",
    "condition number": "Largest singular value divided by the smallest.",
    "KV cache": "Keys and values of all previous tokens, which the model stores while it generates "
    "text. It grows with each token.",
    "activation-aware": "Weighted by the inputs that the calibration text produces, so that "
    "directions without input count little.",
}
# How a term is written in a text, if not as in TERMS: a policy has the name energy, too
_WRITTEN = {"energy": r"(?<=the )energy|energy(?= kept| lost)"}
PATTERN = re.compile(
    "|".join(rf"\b(?:{_WRITTEN.get(term, term)})\b" for term in sorted(TERMS, key=len)[::-1]),
    re.IGNORECASE,
)


def entry(written: str) -> str:
    """Return the term in TERMS for a text that PATTERN matched."""
    return next(term for term in TERMS if term.lower() == written.lower())
