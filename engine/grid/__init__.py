"""Flower's Grid over hosts, in this process or on Ray; replies, evaluation, client selection, the watchdog."""
