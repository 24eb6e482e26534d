"""Recommendation of one strategy without a trial, by rules or by a language model."""
