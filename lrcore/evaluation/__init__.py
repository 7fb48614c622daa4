"""Evaluation: perplexity by named protocols, tasks, answers, local errors, cost and speed."""
