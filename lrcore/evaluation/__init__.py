"""What a model is worth and what it costs: losses by named protocols, tasks, answers, bytes and
seconds, and where it errs.
"""
