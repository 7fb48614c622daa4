"""Whole decoder layers dropped (ShortGPT, SLEB)."""
