"""Experiments: data sets, models, partitions, scenarios, configuration, studies, reports, and the command line.

- federation, data, partitions, scenarios, models, reinforcement: construction of a federation
- config, studies, sweeps: configuration, and the workflow from there to a result
- reports: console output, HTML pages, charts, exports
- timings, suites, grids: benchmarks
- deployment: real federations in Flower
- cli: the commands
"""
