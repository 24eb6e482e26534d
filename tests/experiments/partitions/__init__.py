"""Tests of the partitions."""
