"""A sweep of two raylets into an object store: its command is killed, and goes on from what is in the store."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow.fs import FileSelector, S3FileSystem, copy_files

from tests.experiments.cli.processes import Command
from tests.experiments.sweeps.clusters import raylets
from tests.experiments.sweeps.sweeps import written
from tests.experiments.sweeps.test_on_cluster import SHORT, expected_of

pytestmark = [pytest.mark.stress, pytest.mark.ray, pytest.mark.timeout(300)]

SWEEP = (*SHORT, "training.num_rounds=20", "federation.num_clients=4", "seed=0,1,2,3,4,5")


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return where a stand-in for S3 listens, whose keys are in the environment, as nodes have them."""
    from moto.server import ThreadedMotoServer

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    finally:
        server.stop()


def test_a_killed_command_goes_on_from_the_store(tmp_path: Path, address: str) -> None:
    expected = expected_of(tmp_path / "here", SWEEP)
    store = S3FileSystem(endpoint_override=address, region="us-east-1", allow_bucket_creation=True)
    store.create_dir("bucket")

    def trials() -> dict[str, int]:
        found = store.get_file_info(FileSelector("bucket/out/studies", recursive=True, allow_not_found=True))
        return {entry.path: entry.mtime_ns for entry in found if entry.path.endswith(".parquet")}

    uri = f"s3://bucket/out?endpoint_override={address}&region=us-east-1"
    with raylets(2) as cluster:
        arguments = ("sweep", *SWEEP, f"engine.address={cluster.address}", "--out", uri, "--json")
        with Command(tmp_path, *arguments) as command:
            command.wait_until(lambda: len(trials()) >= 3)
            command.process.send_signal(signal.SIGKILL)
            command.end()
        done = trials()
        assert "bucket/out/table.parquet" not in {
            entry.path for entry in store.get_file_info(FileSelector("bucket/out"))
        }
        with Command(tmp_path, *arguments) as command:
            code, _, _ = command.end()
    assert code == 0
    assert {*done} <= {*trials()}
    copy_files("bucket/out", str(tmp_path / "out"), source_filesystem=store)
    assert written(tmp_path / "out") == expected
