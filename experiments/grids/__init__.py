"""Grids of trials: an experiment as a YAML file, its cells on Ray or in one process, compared and told.

- experiment: the file, its rows, columns and statements
- methods: what a cell measures: a training, a choice, a detection, or a function of one's own
- runner: cells run side by side, resumed, contained
- comparison: paired differences with intervals, and what they say of each statement
- tables: Markdown and pictures
"""
