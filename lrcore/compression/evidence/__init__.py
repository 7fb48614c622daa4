"""Measurements on the model that allocation policies need besides spectra."""
