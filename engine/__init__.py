"""The engine: federations, local training, hosts, grids, trials and their log. It depends on no particular algorithm.

Layers, each of which builds on the previous ones:

- runtime: the local machine, and the Ray cluster that is started on it
- models, contracts: models as one flat vector, and the interfaces that methods implement
- data, messages: clients' data and release rules, and the contents of messages
- client, grid: hosts on which clients train, and Flower's Grid over them
- trials: a trial from its settings to its file in the log
"""
