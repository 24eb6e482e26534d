"""Experiments that compare this program's own methods: SUITE/source.yaml and SUITE/TABLE.yaml."""
