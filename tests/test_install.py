"""A plain, non-editable installation is complete, and a user's files with our names do not get into its way."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = {"engine", "detectors", "strategies", "search", "experiments"}
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", *sorted(PACKAGES))
NAMESAKES = ("search.py", "strategies.py", "engine/__init__.py", "detectors/__init__.py")

pytestmark = pytest.mark.slow


class Installation:
    """fedscout in a virtual environment of its own, which sees this one's dependencies but not its fedscout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site_packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    def run(self, *command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [self.folder / "bin" / command[0], *command[1:]],
            cwd=cwd,
            env=inherited | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    source = tmp_path_factory.mktemp("source")  # setuptools leaves files beside what it builds
    for name in BUILT_FROM:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(REPOSITORY / name, source / name)

    installed = Installation(tmp_path_factory.mktemp("environment"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", installed.folder], check=True)
    # A line in a .pth file adds a folder to the path but does not read that folder's own .pth files, and so leaves out
    # an editable fedscout there.
    (installed.site_packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    pip = [sys.executable, "-m", "pip", "--python", str(installed.folder), "--disable-pip-version-check", "install"]
    done = subprocess.run(
        [*pip, "--no-index", "--no-deps", "--no-build-isolation", "--quiet", source],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return installed


@pytest.fixture
def user_folder(tmp_path: Path) -> Path:
    """A working directory whose files bear our packages' names and fail when imported."""
    for name in NAMESAKES:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"raise RuntimeError('imported the user\\'s {name}')\n")
    return tmp_path


def test_every_module_and_the_type_markers_are_installed(installation: Installation) -> None:
    def files(root: Path) -> set[str]:
        found = (file for package in PACKAGES for file in (root / package).rglob("*"))
        return {str(file.relative_to(root)) for file in found if file.suffix == ".py" or file.name == "py.typed"}

    assert files(installation.site_packages) == files(REPOSITORY)
    for package in PACKAGES:
        assert (installation.site_packages / package / "py.typed").is_file()


def test_nothing_else_is_installed_at_top_level(installation: Installation) -> None:
    (metadata,) = installation.site_packages.glob("fedscout-*.dist-info")
    recorded = {line.split(",")[0].split("/")[0] for line in (metadata / "RECORD").read_text().splitlines()}

    assert recorded == {*PACKAGES, metadata.name, ".."}  # ".." leads to bin/fedscout
    assert (metadata / "licenses" / "LICENSE").is_file()


@pytest.mark.parametrize("python_path", [False, True], ids=["working-directory", "PYTHONPATH"])
@pytest.mark.parametrize("command", [("fedscout",), ("python", "-m", "experiments.cli.main")], ids=["script", "module"])
def test_help_answers_among_namesakes(
    installation: Installation, user_folder: Path, command: tuple[str, ...], python_path: bool
) -> None:
    environment = {"PYTHONPATH": str(user_folder)} if python_path else {}

    done = installation.run(*command, "--help", cwd=user_folder, **environment)

    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_the_namesakes_would_be_imported_otherwise(installation: Installation, user_folder: Path) -> None:
    done = installation.run("python", "-c", "import engine", cwd=user_folder)

    assert "imported the user's engine/__init__.py" in done.stderr


@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.parametrize("python_path", [False, True], ids=["working-directory", "PYTHONPATH"])
def test_a_study_on_ray_runs_among_namesakes(installation: Installation, user_folder: Path, python_path: bool) -> None:
    environment = {"PYTHONPATH": str(user_folder)} if python_path else {}

    done = installation.run(
        "fedscout",
        "run",
        "federation.dataset=wine",
        "federation.num_clients=4",
        "training.num_rounds=1",
        "search.budget=2",
        "search.generation_size=2",
        "search.confirmation_seeds=0",
        "engine.grid=ray",
        "engine.num_hosts=2",
        "--out",
        "out",
        "--json",
        cwd=user_folder,
        **environment,
    )

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["best"] is not None
    assert all(trial["status"] == "completed" for trial in result["trials"]), result["trials"]
    assert len(list((user_folder / "out" / "trials").glob("*.parquet"))) == 3  # FedAvg and the budget
