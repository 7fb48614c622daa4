"""Whole routed experts dropped, or merged into others (REAP, M-SMoE, HC-SMoE)."""
