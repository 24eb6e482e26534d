"""Experiment grids: experiments in YAML files, their cells measured on Ray or in one process, and compared.

- experiment: the file with its rows, columns and statements, and the kinds of method that rows name
- cells: measurement of cells in parallel, with resumption and isolated failures
- comparison: paired differences with intervals, the verdict on each statement, Markdown tables and charts
"""
