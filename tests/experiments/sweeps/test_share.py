"""How studies share the CPUs: no host ever waits for a CPU that another study holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.sweeps.workers import ClusterCpus, Share, share_gpus, share_out
from tests.kits.refusals import refused

ROOMS = st.builds(
    lambda here, nodes, everywhere, work: ClusterCpus(here * nodes, here * nodes if everywhere else here, work),
    st.integers(1, 64),
    st.integers(1, 100),
    st.booleans(),
    st.booleans(),
)
STUDIES = st.integers(1, 500)


def cpus_asked_for(there: ClusterCpus, share: Share) -> int:
    """Hosts ask for a CPU each; where one study has more hosts than there are CPUs, for all of them together."""
    assert share.num_hosts is not None
    return share.parallel * min(share.num_hosts, there.cpus)


@settings(deadline=None)
@given(ROOMS, STUDIES, st.none() | st.integers(1, 300), st.booleans())
def test_left_to_itself_it_never_asks_for_more_cpus_than_there_are(
    there: ClusterCpus, studies: int, num_hosts: int | None, timed: bool
) -> None:
    share = share_out(there, studies, num_hosts, None, timed)
    assert 1 <= share.parallel <= min(studies, there.driver_cpus)
    assert cpus_asked_for(there, share) <= there.cpus
    if num_hosts is not None:
        assert share.num_hosts == num_hosts
    if timed:
        assert share.num_hosts


@settings(deadline=None)
@given(ROOMS, STUDIES, st.none() | st.integers(1, 300), st.integers(1, 300))
def test_what_is_asked_for_is_done_or_refused(
    there: ClusterCpus, studies: int, num_hosts: int | None, parallel: int
) -> None:
    try:
        share = share_out(there, studies, num_hosts, parallel)
    except ConfigurationError as error:
        allowed = int(str(error).split("at most ")[1].split()[0])
        assert 1 <= allowed < parallel
        share = share_out(there, studies, num_hosts, allowed)
        assert share.parallel == min(studies, allowed)
    else:
        assert share.parallel == min(studies, parallel)
    assert cpus_asked_for(there, share) <= there.cpus


LAPTOP = ClusterCpus(cpus=2, driver_cpus=2, driver_nodes_have_cpus=True)
HEAD_ALONE = ClusterCpus(cpus=1600, driver_cpus=16, driver_nodes_have_cpus=False)
CLUSTER = ClusterCpus(cpus=1600, driver_cpus=1600, driver_nodes_have_cpus=True)


@pytest.mark.parametrize(
    ("there", "studies", "num_hosts", "parallel", "share"),
    [
        (LAPTOP, 1, None, None, Share(1, 2)),
        (LAPTOP, 48, None, None, Share(2, 0)),
        (LAPTOP, 48, None, 1, Share(1, 2)),
        (LAPTOP, 48, 2, None, Share(1, 2)),
        (LAPTOP, 48, 1, None, Share(2, 1)),
        (LAPTOP, 48, 4, None, Share(1, 4)),
        (ClusterCpus(1, 1, True), 3, None, None, Share(1, 0)),
        (ClusterCpus(64, 64, True), 4, None, None, Share(4, 16)),
        (HEAD_ALONE, 1, None, None, Share(1, 1600)),
        (HEAD_ALONE, 48, None, None, Share(16, 100)),
        (HEAD_ALONE, 48, None, 48, Share(48, 33)),
        (HEAD_ALONE, 480, 10, 160, Share(160, 10)),
        (CLUSTER, 1, None, None, Share(1, 1600)),
        (CLUSTER, 48, None, None, Share(48, 33)),
        (CLUSTER, 480, 10, None, Share(160, 10)),
        (CLUSTER, 3000, None, None, Share(1600, 0)),
    ],
)
def test_examples(there: ClusterCpus, studies: int, num_hosts: int | None, parallel: int | None, share: Share) -> None:
    assert share_out(there, studies, num_hosts, parallel) == share


def test_the_refusal_says_how_many_are_possible() -> None:
    with refused(ConfigurationError, key="--parallel", given="3"):
        share_out(LAPTOP, 48, 2, 3)


def test_on_gpus_studies_run_one_after_the_other() -> None:
    assert share_gpus(None) == share_gpus(1) == Share(1, None)
    with refused(ConfigurationError, key="--parallel", given="2"):
        share_gpus(2)
