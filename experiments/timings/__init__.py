"""Benchmarks on this machine: rounds, kernels, detection, whole studies and scaling, compared with other programs."""
