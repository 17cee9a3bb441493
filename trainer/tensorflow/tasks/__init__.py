"""The jobs that ship with the trainer for TensorFlow, written exactly as a user's own would be."""
