"""Export to the standard architectures of transformers."""
