"""Every source whose studies can be run again; a new one is a line here."""

from __future__ import annotations

from fedscout.experiments.reproduction.published_study import Source
from fedscout.experiments.reproduction.sources import (
    client_selection,
    client_settings,
    server_rate,
    severity,
    strategy_choice,
)

SOURCES: tuple[Source, ...] = (
    strategy_choice.SOURCE,
    server_rate.SOURCE,
    client_selection.SOURCE,
    client_settings.SOURCE,
    severity.SOURCE,
)
