"""Timings of rounds, kernels, detections, clusters and whole studies; `fedscout bench`."""
