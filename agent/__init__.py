"""What runs on the host: Python 3.8 or newer, the standard library and a bundled pynvml, nothing else.

Nothing here imports another folder of the project, and this module stays empty: it is executed by
whatever interpreter the host offers before anybody has checked its version.
"""
