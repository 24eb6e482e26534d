"""What is told of the package beside its code is true: extras, citation, container, versions of Python."""

from __future__ import annotations

import re
import tomllib

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.conftest import REPOSITORY
from tests.test_install import BUILT_FROM

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()


def test_classifiers_name_the_versions_of_python_that_are_required() -> None:
    named = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert named == [f"3.{minor}" for minor in range(30) if f"3.{minor}" in SpecifierSet(PROJECT["requires-python"])]


def test_the_start_page_tells_what_extras_are_for() -> None:
    page = (REPOSITORY / "docs" / "index.md").read_text()
    told = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    parts = {name for each in EXTRAS.values() for one in each for name in Requirement(one).extras}
    assert told <= set(EXTRAS)
    assert set(EXTRAS) - told - parts == {"peers"}  # of a benchmark; docs/benchmarks.md names it


def test_no_extra_asks_for_another_version_than_the_locked_one() -> None:
    """What one needs beyond that is told by `pip install --dry-run -c constraints.txt '.[EXTRA]'`."""
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    locked = dict(line.split("==") for line in lines if "==" in line)
    asked = [Requirement(one) for each in (*EXTRAS.values(), PROJECT["dependencies"]) for one in each]
    versions = {canonicalize_name(name): version for name, version in locked.items()}
    known = [one for one in asked if canonicalize_name(one.name) in versions]
    assert len(known) > 20
    assert [str(one) for one in known if versions[canonicalize_name(one.name)] not in one.specifier] == []


def test_an_extra_of_extras_names_ones_that_exist() -> None:
    own = [Requirement(one) for each in EXTRAS.values() for one in each if one.startswith("fedscout[")]
    assert own
    assert {name for one in own for name in one.extras} <= set(EXTRAS)


def test_developers_have_what_users_extras_need() -> None:
    needed = {one for name in ("privacy", "docs", "tables", "mcp", "llm") for one in EXTRAS[name]}
    assert needed <= set(EXTRAS["dev"])


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    same = ("version", "license")
    assert [citation[name] for name in same] == [PROJECT[name] for name in same]
    assert citation["title"] == PROJECT["name"]


def test_the_container_is_built_from_what_is_there() -> None:
    copied = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ")]
    sources = {source for line in copied for source in line}
    assert sources == {*BUILT_FROM, "constraints.txt"}
    assert all((REPOSITORY / source).exists() for source in sources)
    ignored = (REPOSITORY / ".dockerignore").read_text().split()
    assert not sources & set(ignored)


def test_the_container_runs_the_locked_versions_and_our_command() -> None:
    (version,) = re.findall(r"^FROM python:([\d.]+)-slim$", DOCKERFILE, re.MULTILINE)
    assert version in SpecifierSet(PROJECT["requires-python"])
    assert f"python{version}" in (REPOSITORY / "Makefile").read_text()  # with which the lock is tested
    assert re.search(r"^RUN pip install .*-c constraints\.txt \.", DOCKERFILE, re.MULTILINE)
    (entry,) = re.findall(r'^ENTRYPOINT \["(\w+)"\]$', DOCKERFILE, re.MULTILINE)
    assert entry in PROJECT["scripts"]
