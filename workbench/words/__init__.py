"""Labels, explanations and sentences of the page, by tab."""

from . import allocation, compare_and_runs, compress, glossary, guidance, pickers, spectra

__all__ = [
    "allocation",
    "compare_and_runs",
    "compress",
    "glossary",
    "guidance",
    "pickers",
    "spectra",
]
