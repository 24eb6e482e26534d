"""What an agent may name, and what not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.agents import allowed_config, folder_below
from tests.kits.refusals import refused


def test_settings_of_the_configuration_are_read(tmp_path: Path) -> None:
    settings = ["federation.dataset=wine", "seed=3", "search.strategies=[krum, fedadam+fedprox]"]
    config = allowed_config(settings, tmp_path)
    assert (config.federation.dataset, config.seed) == ("wine", 3)
    assert allowed_config(["federation.dataset=hf:owner/name"], tmp_path).federation.dataset == "hf:owner/name"


def test_files_may_lie_below_the_folder(tmp_path: Path) -> None:
    for path in ("tables/clients.csv", "./clients.csv", str(tmp_path / "clients.csv"), "tables/../clients.csv"):
        assert allowed_config([f"federation.dataset={path}"], tmp_path).federation.dataset == path


@pytest.mark.parametrize("path", ["/etc/passwd", "../clients.csv", "~/clients.csv", "tables/../../clients.csv"])
def test_files_elsewhere_are_refused(tmp_path: Path, path: str) -> None:
    for key in ("federation.dataset", "federation.folder", "client_settings.path"):
        extra = ["client_settings.kind=table"] if key.startswith("client") else []
        if path.startswith("~"):
            (tmp_path / "~").mkdir(exist_ok=True)  # no shell is asked, so this is a folder of that name
            allowed_config([f"{key}={path}", *extra], tmp_path)
            continue
        with refused(ConfigurationError, key=key, given=repr(path)):
            allowed_config([f"{key}={path}", *extra], tmp_path)


@pytest.mark.parametrize("name", ["out/clients.csv", "mine.csv", "circle.csv"])
def test_a_link_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    """Also one of a bare name, and one to itself."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "clients.csv").touch()
    for link, target in (
        ("out", tmp_path),
        ("mine.csv", tmp_path / "clients.csv"),
        ("circle.csv", root / "circle.csv"),
    ):
        os.symlink(target, root / link)
    with refused(ConfigurationError, key="federation.dataset", given=repr(name)):
        allowed_config([f"federation.dataset={name}"], root)


@pytest.mark.parametrize("words", ["--out=/tmp/x", "-c", "study.yaml", "--config", "", "=1", " seed=1", "SEED=1"])
def test_options_and_files_of_settings_are_refused(tmp_path: Path, words: str) -> None:
    with refused(ConfigurationError, key="a setting", given=repr(words)):
        allowed_config([words], tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        ["strategy.kind=custom", "strategy.path=os:abort"],
        ["search.customs=[{kind: custom, path: 'own.module:Strategy'}]"],
        ["model.kind=own:Net"],
        ["federation.embedding=own:Net"],
    ],
)
def test_code_is_refused_unless_it_is_allowed(tmp_path: Path, settings: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="--own-code"):
        allowed_config(settings, tmp_path)
    allowed_config(settings, tmp_path, own_code=True)


@pytest.mark.parametrize(
    ("key", "address"),
    [
        ("engine.address", "192.0.2.1:6379"),
        ("recommender.base_url", "http://192.0.2.1/v1"),
        ("federation.dataset", "https://192.0.2.1/clients.csv"),
    ],
)
def test_servers_are_refused(tmp_path: Path, key: str, address: str) -> None:
    with refused(ConfigurationError, key=key, given=repr(address)):
        allowed_config([f"{key}={address}"], tmp_path)


@pytest.mark.parametrize("name", ["", ".", "..", "../out", "/tmp/out", "a/../..", "--json", "a\0b", "a\nb"])
def test_folders_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with refused(ConfigurationError, key="a folder"):
        folder_below(tmp_path, name)
    assert folder_below(tmp_path, "runs/one") == tmp_path.resolve() / "runs" / "one"
