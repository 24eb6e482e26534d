"""The tree of errors."""

from __future__ import annotations

import pickle

import pytest

from fedscout.engine import errors
from fedscout.engine.errors import FedscoutError, TrialError, UserError

USER_ERRORS = [errors.UserError, errors.ConfigurationError, errors.DataError, errors.StrategyError, errors.LogError]


@pytest.mark.parametrize("kind", USER_ERRORS)
@pytest.mark.parametrize("faults", ["one fault", ["first", "second"]])
def test_a_user_error_carries_its_faults_through_a_pickle(kind: type[UserError], faults: str | list[str]) -> None:
    error = pickle.loads(pickle.dumps(kind(faults)))

    assert type(error) is kind
    assert error.faults == ((faults,) if isinstance(faults, str) else tuple(faults))
    assert str(error) == "; ".join(error.faults)


def test_a_trial_error_is_no_user_error() -> None:
    error = pickle.loads(pickle.dumps(TrialError("round 3: diverged")))

    assert isinstance(error, FedscoutError)
    assert not isinstance(error, UserError)
    assert str(error) == "round 3: diverged"


def test_all_errors_have_one_root() -> None:
    kinds = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]

    assert set(USER_ERRORS) < set(kinds)
    assert all(issubclass(kind, FedscoutError) for kind in kinds)


@pytest.mark.parametrize(
    ("error", "line"), [(ValueError("\n first\nsecond"), "first"), (ValueError(), "ValueError"), (KeyError("a"), "'a'")]
)
def test_an_error_is_told_in_a_line(error: Exception, line: str) -> None:
    assert errors.first_line(error) == line
