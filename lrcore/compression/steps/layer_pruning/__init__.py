"""Pruning of decoder layers (ShortGPT, SLEB)."""
