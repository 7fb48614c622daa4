"""Pruning and merging of routed experts (REAP, M-SMoE, HC-SMoE)."""
