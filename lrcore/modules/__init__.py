"""What compression puts into a network: `torch.nn` modules, made of values or of their description."""
