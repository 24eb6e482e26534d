"""What may be configured, and that nothing of it gives a secret away."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from pydantic import ValidationError

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.config import load_config
from fedscout.search.config import EXCLUDED_FROM_IDENTITY, OPENAI_PRICES, Price, RecommenderConfig, redact
from tests.kits.refusals import refused


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "https://example.org", "http://[::1]:11434/v1/"])
def test_addresses_of_servers(url: str) -> None:
    assert RecommenderConfig(base_url=url).base_url == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.org",
        "ftp://example.org",
        "file:///etc/passwd",
        "http://",
        "http://h:x/v1",
        "http://a..b/v1",
        "http://a b/",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with refused(ConfigurationError, key="recommender.base_url"):
        load_config([f'recommender.base_url="{url}"'])


@pytest.mark.parametrize(
    "url",
    [
        "http://me:hidden@host/v1",
        "http://hidden@host/v1",
        "http://host/v1?key=hidden",
        "http://h/#hidden",
        "me:hidden@h/v1",
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RecommenderConfig(base_url=url)
    assert "hidden" not in caught.value.errors()[0]["msg"]
    assert caught.value.errors()[0]["type"] == "value_error"  # whose own text alone is shown


def test_openai_needs_a_key_and_other_servers_need_none() -> None:
    with refused(ConfigurationError, key="recommender.api_key_variable"):
        load_config(["recommender.api_key_variable=null"])
    assert RecommenderConfig(api_key_variable=None, base_url="http://127.0.0.1:1/v1").api_key_variable is None


def test_what_is_no_part_of_the_identity_exists() -> None:
    assert set(EXCLUDED_FROM_IDENTITY) < set(RecommenderConfig.model_fields)


def test_prices() -> None:
    """A thousand tokens of the prompt at 2 and 500 of the answer at 8 US dollars a million are 0.006."""
    own = Price(input=1, output=1)
    price = RecommenderConfig().price(is_openai=True)
    assert price.cost_usd(1000, 500) == pytest.approx(0.006)
    assert RecommenderConfig().price(is_openai=False) is None
    assert RecommenderConfig(prices={"gpt-4.1": own}).price(is_openai=True) == own
    assert RecommenderConfig(model="llama", prices={"llama": own}).price(is_openai=False) == own
    assert own.cost_usd(None, 500) is None
    assert all(price.output > price.input for price in OPENAI_PRICES.values())


@pytest.mark.parametrize(
    ("text", "secrets", "expected"),
    [
        ("nothing to see", ("0123456789",), "nothing to see"),
        ("it is 0123456789!", ("0123456789",), "it is [redacted]!"),
        ("sk-proj-abcDEF_123-456 and gsk_abcdefgh1234", (), "[redacted] and [redacted]"),
        ("Authorization: Bearer abcdefgh.12345", (), "Authorization: Bearer [redacted]"),
        ("the risk-averse bearer of news", ("none",), "the risk-averse bearer of news"),
        ("none of the nonesuch, says none", ("none",), "[redacted] of the nonesuch, says [redacted]"),
    ],
)
def test_secrets_are_taken_out_and_nothing_else(text: str, secrets: tuple[str, ...], expected: str) -> None:
    assert redact(text, secrets) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_corrections", 4),
        *product(["timeout_seconds", "temperature", "max_answer_tokens"], [-1, float("nan"), float("inf")]),
    ],
)
def test_numbers_have_limits(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        RecommenderConfig(**{field: value})
