"""The complete compression of a model by a recipe."""
