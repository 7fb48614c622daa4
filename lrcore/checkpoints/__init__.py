"""Models on disk: checkpoints, exports that load without this package, and model cards."""
