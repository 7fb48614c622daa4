"""Export to GGUF, the format of llama.cpp."""
