"""The jobs that ship with the trainer, written exactly as a user's own would be: see `..contract`."""
