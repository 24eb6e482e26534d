"""A plain, non-editable installation is complete, and a user's files with our names do not get into its way."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.commands import REPOSITORY, ran

FOLDERS = ("engine", "detectors", "strategies", "search", "experiments")
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "src", *FOLDERS)
NAMESAKES = ("search.py", "engine/__init__.py", "experiments/__init__.py", "detectors/__init__.py", "tests.py")

pytestmark = pytest.mark.slow


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


def build_sdist(source: Path, folder: Path) -> None:
    build = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, folder], cwd=source, check=True, capture_output=True)


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """One from the wheel of a source distribution, and one that leads to a checkout."""
    source = tmp_path_factory.mktemp("source")  # setuptools leaves files beside what it builds
    for name in BUILT_FROM:
        if (REPOSITORY / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(REPOSITORY / name, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(REPOSITORY / name, source / name)
    what: tuple[str | Path, ...] = ("--editable", source)
    if request.param == "wheel":
        sdist = tmp_path_factory.mktemp("sdist")
        build_sdist(source, sdist)
        what = (next(sdist.glob("fedscout-*.tar.gz")),)

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
    installed = sorted(
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}*/bin/python")
    )
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


@pytest.mark.parametrize("command", [("fedscout",), ("python", "-m", "fedscout")], ids=["script", "module"])
def test_help_answers_among_namesakes(installation: Installation, user_folder: Path, command: tuple[str, ...]) -> None:
    done = installation.run(*command, "--help", cwd=user_folder, PYTHONPATH=str(user_folder))

    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


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


def test_a_source_distribution_holds_no_part_of_the_tests(tmp_path: Path) -> None:
    """By default setuptools takes some files of theirs, which can't run without the others and the lock."""
    source = tmp_path / "source"
    for name in ("src/fedscout", "tests"):
        (source / name).mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "tests/test_install.py"):
        shutil.copy(REPOSITORY / name, source / name)
    project = (source / "pyproject.toml").read_text()
    start, end = project.index("packages = ["), project.index("[tool.setuptools.package-data]")
    (source / "pyproject.toml").write_text(f"{project[:start]}packages = []\n\n{project[end:]}")
    build_sdist(source, tmp_path)
    with tarfile.open(next(tmp_path.glob("fedscout-*.tar.gz"))) as archive:
        names = [name.split("/")[1:] for name in archive.getnames()]
    assert ["pyproject.toml"] in names
    assert [name for name in names if name[:1] == ["tests"]] == []
