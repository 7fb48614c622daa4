"""What changes a model: factors, what a policy measures on them, ranks put in, refit, healed,
quantised, whole layers dropped.
"""
