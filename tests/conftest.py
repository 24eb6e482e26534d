"""What every test may ask for: one Ray a process, the folder of real data, and a quiet machine; and what was skipped.

The environment is set before anything imports numpy, torch or Ray: they read it once, when they load.
"""

from __future__ import annotations

import os
import sys

if "gpu" not in sys.argv and "PYTEST_XDIST_WORKER" not in os.environ:  # but for `-m gpu`, tests are of cores
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

os.environ.update(
    OMP_NUM_THREADS="1",
    OPENBLAS_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",  # Ray's future default; the present one warns at every start
)

import gc
import logging
import warnings
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("fedscout", deadline=None)  # laws are what is tested, and machines are busy
settings.load_profile("fedscout")

REPOSITORY = Path(__file__).resolve().parent.parent
OBJECT_STORE_BYTES = 300 * 2**20


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One local Ray with two CPUs a test process, started for the first test that asks and stopped after the last."""
    import ray

    from fedscout.engine.runtime.ray import forget_token, own_token, single_node_ray

    if ray.is_initialized():
        pytest.fail("Ray must not run before the fixture starts it; a test called ray.init without ray.shutdown")
    with pytest.MonkeyPatch.context() as patch, own_token(), single_node_ray(log_monitor=False):
        patch.chdir(REPOSITORY)  # Ray puts it on the workers' path, so they find the classes that tests define
        ray.init(
            address="local",  # the processes that tests are dealt to have one each
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level="ERROR",
        )
    try:
        yield
    finally:
        with warnings.catch_warnings():
            # Ray drops the handles of its daemons without waiting for them; the daemons do end.
            warnings.simplefilter("ignore", ResourceWarning)
            ray.shutdown()
            forget_token()
            gc.collect()


@pytest.fixture(autouse=True)
def _own_logger_as_new() -> Iterator[None]:
    """Undo what a command in the tests' process has done to the program's logger, be it in a fixture of a module."""
    _renew_own_logger()
    yield
    _renew_own_logger()


def _renew_own_logger() -> None:
    logger = logging.getLogger("fedscout")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data sets that FEDSCOUT_DATA names; the test is skipped where it names none."""
    configured = os.environ.get("FEDSCOUT_DATA")
    if not configured:
        pytest.skip("FEDSCOUT_DATA names no folder")
    folder = Path(configured)
    if not folder.is_dir():
        pytest.fail(f"FEDSCOUT_DATA must name a folder; got {configured}")
    return folder


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave so many parametrizations of a test in the gate as `sampled` says, evenly spread; the others are stress.

    The longest file begins, as one process would else be alone with it at the end.
    """
    items.sort(key=lambda item: item.path.name != "test_bits.py")
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") is not None and item.get_closest_marker("stress") is None:
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for family in families.values():
        marker = family[0].get_closest_marker("sampled")
        assert marker is not None
        (size,) = marker.args
        kept = {position * len(family) // size for position in range(size)}
        for position, item in enumerate(family):
            if position not in kept:
                item.add_marker(pytest.mark.stress)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Print which tests were skipped and why, below pytest's closing line."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):  # a process that only runs tests prints nothing
        return
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reporter.stats.get("skipped", ()))
    told = "; ".join(f"{count} as {reason}" for reason, count in reasons.most_common())
    reporter.write_line(f"skipped: {told or 'none'}")
