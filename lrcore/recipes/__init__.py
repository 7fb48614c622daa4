"""Recipes, targets, and the history and provenance of a compressed model."""
