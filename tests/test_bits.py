"""The guard of results: what studies give is what they gave, to the last bit, however they are run."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.fixtures.bits import __main__ as bits

KEPT = json.loads(bits.FILE.read_text())


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_every_round_of_every_study_has_its_bits() -> None:
    if bits.processor() != KEPT["processor"]:
        pytest.skip(f"bits are of {KEPT['processor']}, and this is {bits.processor()}")
    command = [sys.executable, "-m", "tests.fixtures.bits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | bits.ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["studies"]
    assert found.keys() == KEPT["studies"].keys()
    assert {name for name in found if found[name] != KEPT["studies"][name]} == set()


def test_hosts_and_kills_change_no_bit() -> None:
    studies = KEPT["studies"]
    for name in bits.ON_RAY:
        assert studies[f"{name}, two hosts on Ray"] == studies[name]
    assert studies[f"{bits.KILLED}, killed"] == studies[bits.KILLED]
    assert all(rounds for rounds in studies.values())
