"""Tests on real Flower federations, started on the loopback."""
