"""A plain installation is complete, what is told of it is true, and a user's files with our names do no harm."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.code_size import PACKAGES, REPOSITORY
from tests.commands import ran

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


def test_extras_name_extras_that_exist_and_developers_have_what_users_extras_need() -> None:
    own = [Requirement(one) for each in EXTRAS.values() for one in each if one.startswith("fedscout[")]
    assert own
    assert {name for one in own for name in one.extras} <= set(EXTRAS)
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


BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "src", *PACKAGES)
NAMESAKES = ("search.py", "engine/__init__.py", "experiments/__init__.py", "detectors/__init__.py", "tests.py")


class Installation:
    """fedscout in a virtual environment of its own, which sees this one's dependencies but not its fedscout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site_packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    @property
    def package_folder(self) -> Path:
        """Where `fedscout` is imported from."""
        where = "import fedscout; print(fedscout.__path__[0])"
        return Path(self.run("python", "-c", where, cwd=self.folder).stdout.strip()).parent

    def run(self, *command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        program = self.folder / "bin" / command[0]
        return ran(program, *command[1:], cwd=cwd, timeout=240, without=("PYTHONPATH",), **environment)


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """One from the wheel of a source distribution, and one that leads to a checkout."""
    source = tmp_path_factory.mktemp("source")  # setuptools leaves files beside what it builds
    for name in (*BUILT_FROM, "MANIFEST.in", "tests"):
        if (REPOSITORY / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(REPOSITORY / name, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(REPOSITORY / name, source / name)
    what: tuple[str | Path, ...] = ("--editable", source)
    if request.param == "wheel":
        build = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
        sdist = tmp_path_factory.mktemp("sdist")
        subprocess.run([sys.executable, "-c", build, sdist], cwd=source, check=True, capture_output=True)
        what = (next(sdist.glob("fedscout-*.tar.gz")),)
        with tarfile.open(what[0]) as archive:  # setuptools would take some tests, which can't run without the others
            assert {name.split("/")[1] for name in archive.getnames() if "/" in name} >= {"pyproject.toml", "src"}
            assert not [name for name in archive.getnames() if name.split("/")[1:2] == ["tests"]]

    installed = Installation(tmp_path_factory.mktemp("environment"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", installed.folder], check=True)
    # A line in a .pth file adds a folder to the path but does not read that folder's own .pth files, and so leaves out
    # an editable fedscout there.
    (installed.site_packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    pip = [sys.executable, "-m", "pip", "--python", str(installed.folder), "--disable-pip-version-check", "install"]
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--quiet"]
    done = ran(*pip, *options, *what, timeout=600, without=("PYTHONPATH",))
    assert done.returncode == 0, done.stderr
    return installed


def interpreter(version: str) -> str | None:
    """Return a Python of that version, from the path or from pyenv, whose shims stand for versions that are not on."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    installed = sorted(root.glob(f"versions/{version}*/bin/python"))
    for command in (shutil.which(f"python{version}"), *map(str, installed)):
        if command and not subprocess.run([command, "-c", ""], capture_output=True, check=False).returncode:
            return command
    return None


@pytest.fixture
def user_folder(tmp_path: Path) -> Path:
    """A working directory whose files bear our folders' names and fail when imported, but for a strategy."""
    for name in NAMESAKES:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"raise RuntimeError('imported the user\\'s {name}')\n")
    (tmp_path / "strategies.py").write_text("from flwr.serverapp.strategy import FedAvg\n\nclass Own(FedAvg): ...\n")
    return tmp_path


@pytest.mark.slow
@pytest.mark.sampled(1)
def test_one_name_is_installed_with_every_module_below_it(installation: Installation) -> None:
    if not (installation.site_packages / "fedscout").is_dir():
        pytest.skip("an editable installation leads to the checkout")
    (metadata,) = installation.site_packages.glob("fedscout-*.dist-info")
    recorded = {line.split(",")[0].split("/")[0] for line in (metadata / "RECORD").read_text().splitlines()}
    assert recorded == {"fedscout", metadata.name, ".."}  # ".." leads to bin/fedscout
    assert (metadata / "licenses" / "LICENSE").is_file()

    def files(root: Path) -> set[str]:
        found = (Path(folder) / name for folder, _, names in os.walk(root, followlinks=True) for name in names)
        return {str(file.relative_to(root)) for file in found if "__pycache__" not in file.parts}

    installed = files(installation.site_packages / "fedscout")
    assert installed == files(REPOSITORY / "src" / "fedscout")
    tables = {f"search/recommenders/{name}" for name in ("gains.csv", "priors.parquet")}
    assert {"py.typed", "experiments/suites/choice/trials.parquet", *tables} <= installed


@pytest.mark.slow
@pytest.mark.parametrize("command", [("fedscout",), ("python", "-m", "fedscout")], ids=["script", "module"])
def test_help_answers_among_namesakes(installation: Installation, user_folder: Path, command: tuple[str, ...]) -> None:
    done = installation.run(*command, "--help", cwd=user_folder, PYTHONPATH=str(user_folder))

    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_help_answers_under_later_versions_of_python(installation: Installation, version: str, tmp_path: Path) -> None:
    """Help needs nothing that was compiled for this version, so another interpreter may read the same dependencies."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    path = os.pathsep.join([str(installation.package_folder), *site.getsitepackages()])
    done = ran(python, "-m", "fedscout", "--help", cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.parametrize("installation", ["wheel", "editable"], indirect=True)
def test_a_study_on_ray_runs_among_namesakes(installation: Installation, user_folder: Path) -> None:
    """One of them holds a strategy of the user's own, which is tried."""
    federation = ("federation.dataset=wine", "federation.num_clients=4", "training.num_rounds=1")
    search = ("search.budget=2", "search.generation_size=2", "search.kind=grid", "search.confirmation_seeds=0")
    tried = ("search.strategies=[fedavgm]", "search.customs=[{kind: custom, path: 'strategies:Own'}]")
    settings = (*federation, *search, *tried, "engine.grid=ray", "engine.num_hosts=2")
    done = installation.run("fedscout", "run", *settings, "--out", "out", "--json", cwd=user_folder)

    assert done.returncode == 0, done.stderr
    trials = json.loads(done.stdout)["trials"]
    assert all(trial["status"] == "completed" for trial in trials), trials
    assert "strategies:Own" in {trial["strategy"] for trial in trials}
    assert len(list((user_folder / "out" / "trials").glob("*.parquet"))) == 3  # FedAvg and the budget
