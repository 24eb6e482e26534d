"""A user's own module: found, called with what it takes, tried before anything starts, found again elsewhere."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.data.dataset import DataKind
from fedscout.experiments.models.own import own_extractor
from fedscout.experiments.models.request import ImportedModel, ModelRequest, ModelSettings
from fedscout.experiments.models.table import build_model
from tests.commands import REPOSITORY, ran
from tests.kits.refusals import refused

MODULES = """
import random
from functools import partial
from os import abort
from shutil import rmtree

import torch
from torch import nn


def net(num_features, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(num_features, 8), nn.ReLU(), nn.Linear(8, num_classes))


half = partial(net, 6)


def fixed():
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


class Net(nn.Module):
    def __init__(self, num_classes, *, feature_shape, width=5, **more):
        super().__init__()
        assert not more
        assert isinstance(feature_shape, tuple)
        self.body = nn.Linear(feature_shape[-1], width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, rows):
        return self.head(self.body(rows).relu())


class Texts(nn.Module):
    def __init__(self, vocabulary_size, num_classes):
        super().__init__()
        self.words = nn.Embedding(vocabulary_size, 4)
        self.head = nn.Linear(4, num_classes)

    def forward(self, rows):
        return self.head(self.words(rows.long()).mean(dim=1))


class Squeezed(Net):
    def forward(self, rows):
        return super().forward(rows).squeeze()


class Detached(Net):
    def forward(self, rows):
        return super().forward(rows).detach()


class Pair(Net):
    def forward(self, rows):
        return super().forward(rows), None


def too_narrow(num_features, num_classes):
    return net(num_features, num_classes - 1)


def mismatched_net(num_features, num_classes):
    return nn.Sequential(nn.Linear(num_features, 5), nn.Linear(7, num_classes))


class FailingInEvaluation(Net):
    def forward(self, rows):
        return super().forward(rows if self.training else rows[:, :2])


def own_random_numbers(num_features, num_classes):
    module = net(num_features, num_classes)
    nn.init.constant_(module[1].bias, random.random())
    return module


def doubles(num_features, num_classes):
    return net(num_features, num_classes).double()


def infinite(num_features, num_classes):
    module = net(num_features, num_classes)
    module.register_buffer("mask", torch.full((2,), float("-inf")))
    return module


def lazy(num_classes):
    return nn.LazyLinear(num_classes)


def nothing_to_train():
    return nn.Flatten()


def frozen(num_features, num_classes):
    return net(num_features, num_classes).requires_grad_(False)


def frozen_extractor(num_features):
    return nn.Linear(num_features, 4).requires_grad_(False)


def maps():
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3))


class Summing(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, rows):
        return self.factor * rows.sum(dim=1)


def mismatched(num_features):
    return nn.Linear(num_features + 1, 4)


def annotated() -> int:
    raise AssertionError("called")


removing = partial(rmtree, "nowhere")


def no_module():
    return 3


def width_needed(num_features, width):
    return nn.Linear(num_features, width)


def raising(num_classes):
    raise ValueError(f"{num_classes} is too\\nmany")


def talking(num_features, num_classes):
    print("building")
    return net(num_features, num_classes)


ready = net(6, 3)
"""


@pytest.fixture
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's working directory, with a module `users_nets`; import path and modules are put back."""
    (tmp_path / "users_nets.py").write_text(MODULES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


Build = Callable[..., ImportedModel]


@pytest.fixture
def build(user_folder: Path) -> Build:
    """Return a function that builds the factory of a path, for rows of six features and three classes."""

    def build_own(path: str, shape: tuple[int, ...] = (6,), data_kind: DataKind = "table") -> ImportedModel:
        vocabulary_size = 9 if data_kind == "tokens" else 0
        factory = build_model(ModelRequest(shape, 3, ModelSettings(kind=path), data_kind, vocabulary_size))
        assert isinstance(factory, ImportedModel)
        return factory

    return build_own


@pytest.mark.parametrize(
    ("name", "shape", "data_kind", "arguments"),
    [
        ("net", (6,), "table", {"num_features": 6, "num_classes": 3}),
        ("net", (2, 3), "image", {"num_features": 6, "num_classes": 3}),
        ("half", (6,), "table", {"num_classes": 3}),
        ("fixed", (6,), "table", {}),
        ("Net", (6,), "table", {"num_classes": 3, "feature_shape": (6,)}),
        ("Texts", (6,), "tokens", {"vocabulary_size": 9, "num_classes": 3}),
    ],
)
def test_a_factory_is_called_with_the_facts_that_it_takes(
    build: Build, name: str, shape: tuple[int, ...], data_kind: DataKind, arguments: dict[str, object]
) -> None:
    factory = build(f"users_nets:{name}", shape, data_kind)
    assert dict(factory.arguments) == arguments
    assert factory()(torch.zeros(4, *shape)).shape == (4, 3)
    assert str(factory) == f"users_nets:{name}"


@pytest.mark.parametrize("path", ["os:abort", "shutil:rmtree", "antigravity:geohash", "xml.dom:Node"])
def test_python_s_own_library_is_not_even_imported(build: Build, path: str) -> None:
    already = set(sys.modules)
    with refused(ConfigurationError, key="model.kind"):
        build(path)
    assert "antigravity" not in set(sys.modules) - already


@pytest.mark.parametrize("path", ["numpy:show_config", "ray:init", "torch.cuda:synchronize", "torch.optim:Adam"])
def test_a_function_of_others_must_say_that_it_returns_a_module(build: Build, path: str) -> None:
    with refused(ConfigurationError, key="model.kind"):
        build(path)


def test_a_function_of_others_that_says_so_is_called(build: Build, user_folder: Path) -> None:
    others = user_folder / "site-packages"
    others.mkdir()
    (others / "others_nets.py").write_text(
        "from torch import nn\n"
        "def net(num_features, num_classes) -> nn.Linear:\n    return nn.Linear(num_features, num_classes)\n"
        "def plain(num_features, num_classes):\n    raise AssertionError('called')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(others)
        assert build("others_nets:net")().in_features == 6
        with refused(ConfigurationError, key="model.kind"):
            build("others_nets:plain")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("Missing", "users_nets.py"),
        ("ready", "Sequential"),
        ("no_module", "got int"),
        ("annotated", "annotated with int"),
        ("abort", "builtin_function"),
        ("removing", "shutil"),
        ("width_needed", "got width"),
        ("raising", "num_classes=3"),
        ("doubles", "'1.weight' of torch.float64 on cpu"),
        ("infinite", "'mask'"),
        ("lazy", "'weight'"),
        ("nothing_to_train", "have parameters"),
        ("frozen", "trainable"),
        ("own_random_numbers", "seed"),
        ("Detached", "gradient"),
        ("Pair", "got tuple"),
        ("too_narrow", "shape (2, 2)"),
        ("Squeezed", "shape (1, 3), got shape (3,)"),
        ("mismatched_net", "2 rows"),
        ("FailingInEvaluation", "1 row"),
    ],
)
def test_a_module_that_does_not_work_is_told_in_a_line(build: Build, name: str, named: str) -> None:
    with refused(ConfigurationError, key="model.kind", names=named) as caught:
        build(f"users_nets:{name}")
    assert "\n" not in str(caught.value)
    assert caught.value.faults[0].subject == f"model.kind=users_nets:{name}"


@pytest.mark.parametrize("name", ["frozen_extractor", "maps"])
def test_an_extractor_needs_neither_classes_nor_gradients(user_folder: Path, name: str) -> None:
    factory = own_extractor(f"users_nets:{name}", ModelRequest((6,), 3))
    assert pickle.loads(pickle.dumps(factory)) == factory


@pytest.mark.parametrize("name", ["Summing", "mismatched"])
def test_an_extractor_that_does_not_work(user_folder: Path, name: str) -> None:
    with refused(ConfigurationError, key="federation.embedding"):
        own_extractor(f"users_nets:{name}", ModelRequest((6,), 3))


@pytest.mark.parametrize(
    ("content", "raised"),
    [(None, "ModuleNotFoundError"), ("def f(:\n", "SyntaxError"), ("raise SystemExit('bye')\n", "SystemExit")],
)
def test_a_module_that_cannot_be_imported(build: Build, user_folder: Path, content: str | None, raised: str) -> None:
    if content is not None:
        (user_folder / "users_broken.py").write_text(content)
    with refused(ConfigurationError, key="model.kind", names=f"got {raised}") as caught:
        build("users_broken:Net")
    assert "\n" not in str(caught.value)


def test_settings_are_for_the_models_of_this_program(user_folder: Path) -> None:
    with refused(ConfigurationError, key="model.hidden", names="model.kind=users_nets"):
        build_model(ModelRequest((6,), 3, ModelSettings(kind="users_nets:net", hidden=(4,))))


def test_trying_a_module_leaves_no_trace(build: Build, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither in torch's random state nor on standard output, which is for results."""
    before = torch.get_rng_state()
    build("users_nets:talking")
    assert torch.equal(torch.get_rng_state(), before)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "building" in captured.err


def in_another_process(script: str, *arguments: str | Path, folder: Path) -> str:
    source = str(REPOSITORY / "src")
    program = (sys.executable, "-c", script)
    done = ran(*program, *arguments, cwd=folder, PYTHONPATH=source, PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_another_process_finds_it(build: Build, user_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A host works elsewhere. The user's folder, which holds a `fedscout.py`, is searched last there.

    That the module builds another one when it is imported, the first time only, changes no initial model.
    """
    (user_folder / "fedscout.py").write_text("raise RuntimeError('shadowed')\n")
    (user_folder / "users_package").mkdir()
    (user_folder / "users_package" / "__init__.py").write_text("")
    (user_folder / "users_package" / "inner.py").write_text("from users_nets import net\n")
    factory = build("users_package.inner:net")
    assert factory.folders == (str(user_folder),)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "factory.pickle").write_bytes(pickle.dumps(factory))

    out = in_another_process(
        "import pickle, sys\n"
        "factory = pickle.load(open(sys.argv[1], 'rb'))\n"
        "import torch\n"
        "biases = [(torch.manual_seed(1), factory()[1].bias)[1] for _ in range(2)]\n"
        "print(torch.equal(*biases), sys.path[-1], sys.path.count(sys.argv[2]))\n"
        "import fedscout; print(fedscout.__file__)\n",
        elsewhere / "factory.pickle",
        user_folder,
        folder=elsewhere,
    )

    assert out.splitlines() == [f"True {user_folder} 1", str(REPOSITORY / "src" / "fedscout" / "__init__.py")]
