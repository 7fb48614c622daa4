"""The `torch.nn` modules of compressed networks, made from values or from their description."""
