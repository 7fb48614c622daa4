"""Models on disk: our checkpoints, folders that load without this project, and the card that
goes with both.
"""
