"""Export as multi-head latent attention."""
