"""Compression: calibration, factors, rank allocation, evidence, refit and further steps."""
