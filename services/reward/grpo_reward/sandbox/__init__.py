"""Runs programs that a model wrote: no network, no files, no other processes, bounded time and memory.

`run.py` is what a reward calls. It starts `launcher.py`, a process of its own, which raises the barriers of
`barriers.py` and runs the program once for each test.
"""
