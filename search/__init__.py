"""Strategy recommendation and search, the study loop, and the confirmation of its results.

Subpackages and modules, each depending only on those before it:

- language_model, recommenders: recommendation of a strategy without a trial
- searchers: one module per searcher
- confirmation: confirmation on fresh seeds
- study: the complete study
"""
