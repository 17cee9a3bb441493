"""Training with TensorFlow: the same options, order of samples, lines of progress and checkpoint folder.

Nothing here imports torch, and nothing outside imports this before a strategy of TensorFlow is asked for.
"""
