"""Searchers: random, grid, genetic, CMA-ES, TPE, Gaussian process, racing, and language model."""
