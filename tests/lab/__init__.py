"""A lab: several isolated hosts on this one Linux machine, each reached by nothing but SSH.

Each host has its own network, mounts, processes, hostname, home and sshd, and hangs on a switch by a cable.
Tests use the fixture `lab`; by hand: `python -m tests.lab up 3 --shm 64m --noise vast`.
"""
