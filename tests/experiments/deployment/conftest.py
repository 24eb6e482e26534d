"""What the tests on real federations may ask for."""

from __future__ import annotations

from tests.experiments.deployment.superlink import real_federation

__all__ = ["real_federation"]
