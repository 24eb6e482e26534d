"""Searchers, the study loop around them, and the confirmation of what they find."""
