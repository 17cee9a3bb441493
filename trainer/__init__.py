"""What runs in the ranks: the built-in trainer, started as `python -m trainer`, alone or under torchrun.

It needs Python 3.10, torch 2.4 or newer, and nothing else; it imports no other folder of the project, so that
this folder alone can be sent to a host. torch is imported late: `--help` and wrong options answer at once.
"""
