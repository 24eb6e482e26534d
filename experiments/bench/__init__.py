"""Measurements of the program by itself, each behind a `fedscout bench` command."""
