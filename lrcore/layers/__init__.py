"""Decoder layers as values, their statistics, and the linear algebra of single matrices."""
