"""Experiments that compare methods of this package: SUITE/source.yaml and SUITE/TABLE.yaml."""
