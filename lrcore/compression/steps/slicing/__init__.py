"""A narrower residual stream (SliceGPT)."""
