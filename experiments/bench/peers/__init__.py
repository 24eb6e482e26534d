"""Other ways to do the bench's work, each a program of its own; see `experiments.bench.peer_runs`.

A peer may run in another environment than this one. So the files here import numpy, torch, what they measure and each
other, and nothing else of this project.
"""
