"""One small study, undisturbed: what every disturbed one must equal."""

from __future__ import annotations

import logging

import pytest

from fedscout.experiments.config import load_config
from fedscout.experiments.studies.workflow import Display, run_workflow
from tests.experiments.cli.conftest import cli
from tests.faults.undisturbed import LOCAL, STUDY, Outcome

__all__ = ["cli", "undisturbed"]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Log and result of the study, run in one process without a fault."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("flwr"), "level", logging.ERROR)
        run_workflow(load_config([*STUDY, LOCAL]), out, Display())
    return Outcome.of(out)
