"""The chaos run itself, short; and that it would notice if a study came out differently."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedscout.experiments.cli.main import main
from tests.faults.chaos import NUM_TRIALS, STUDY, ChaosError, chaos, plan, refuse_differences
from tests.forged_trials import forge


def test_a_plan_is_that_of_its_seed_and_spends_all_its_kills_before_the_study_ends() -> None:
    kills = plan(random.Random(3), 50, 3600)

    assert kills == plan(random.Random(3), 50, 3600)
    assert kills != plan(random.Random(4), 50, 3600)
    assert len(kills) == 50
    assert {kill.kind for kill in kills} == {"trial", "host", "driver"}
    assert [kill.after_round for kill in kills] == sorted(kill.after_round for kill in kills)
    assert kills[0].after_round > 0
    assert kills[-1].after_round < 2700
    assert "node" in {kill.kind for kill in plan(random.Random(3), 50, 3600, nodes=True)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("chaos") / "out"
    with pytest.raises(SystemExit) as ended:
        main(["run", *STUDY, "training.num_rounds=2", "engine.grid=local", "--json", "--out", str(out)])
    assert ended.value.code == 0
    return out


@pytest.mark.stress
def test_timings_are_no_difference(finished: Path, tmp_path: Path) -> None:
    other = shutil.copytree(finished, tmp_path / "other")
    document = json.loads((other / "result.json").read_text())
    (other / "result.json").write_text(json.dumps({**document, "timings": {"seconds": {}}}))
    for path in other.glob("trials/*"):
        forge(path, seconds=[("total", 1.0)])

    refuse_differences(finished, other)


@pytest.mark.parametrize("change", ["a bit", "a row", "the result", "a checkpoint"])
def test_any_other_difference_is_noticed(finished: Path, tmp_path: Path, change: str) -> None:
    other = shutil.copytree(finished, tmp_path / "other")
    first = min(other.glob("trials/*"))
    if change == "a bit":
        forge(first, fitness=float(np.nextafter(pq.read_table(first)["fitness"][0].as_py(), 2)))
    elif change == "a row":
        shutil.copy(first, first.with_name("00099-again.parquet"))
    elif change == "the result":
        document = json.loads((other / "result.json").read_text())
        (other / "result.json").write_text(json.dumps({**document, "best": None}))
    else:
        (other / "checkpoints").mkdir(exist_ok=True)
        (other / "checkpoints" / "left.checkpoint").touch()

    with pytest.raises(ChaosError):
        refuse_differences(finished, other)


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.timeout(290)
def test_a_study_that_is_killed_at_random_comes_out_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = chaos(tmp_path, seed=6, num_kills=6, rounds_per_trial=30)

    assert " 6 kills " in told
    assert capsys.readouterr().out.count("kill ") == 6
    assert len(list((tmp_path / "out" / "trials").glob("*.parquet"))) == NUM_TRIALS
