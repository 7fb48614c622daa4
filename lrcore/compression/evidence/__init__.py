"""What allocation policies need measured on the model besides spectra."""
