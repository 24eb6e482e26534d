"""Timings of this machine: rounds, kernels, detection, whole studies, scaling, beside other programs."""
