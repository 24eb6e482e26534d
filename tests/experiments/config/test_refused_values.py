"""A wrong value of a configuration key is refused under that key."""

from __future__ import annotations

import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.config import known_keys, load_config
from tests.kits.refusals import refused

TAKE_GROUPS = ("federation.columns", "federation.scenario", "search.client_ranges.")
KEYS = [key for key in known_keys() if key.startswith(("training.", "search.", "federation."))]


@pytest.mark.parametrize("key", KEYS)
def test_a_wrong_value_is_refused_under_its_key(key: str) -> None:
    wrong = f"{key}=1.5" if key.startswith(TAKE_GROUPS) else f"{key}.nothing_of_the_kind=1"
    with refused(ConfigurationError, key=key):
        load_config([wrong])
