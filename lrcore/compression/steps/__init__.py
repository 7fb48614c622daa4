"""Further compression steps: sharing, quantization, sparsity, pruning and healing."""
