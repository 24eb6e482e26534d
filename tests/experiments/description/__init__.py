"""Tests of what a federation is said to be."""
