"""Tests of batch sweeps."""
