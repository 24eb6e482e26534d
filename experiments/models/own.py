"""A user-defined network, named by import path: `model.kind=package.module:factory`.

The factory is a subclass of `torch.nn.Module`, or a function that returns a module; nothing else is called. A function
outside the user's own code must have a return annotation of a module, so that a name in a configuration can't call
arbitrary installed functions. The factory is called with those of `feature_shape`, `num_features`, `num_classes` and
`vocabulary_size` that it takes by name. It is looked up on the Python path and in the working directory; every process
that builds the model searches the working directory last, so that a user's file never shadows one of this package.

The network is built and tried on two dummy rows before anything starts. A module is used as one float32 parameter
vector, on a CPU, and may draw random numbers only from PyTorch's generator; it maps rows to one number per class.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.models.flat import FlatModel
from fedscout.engine.user_code import is_own
from fedscout.experiments.models.request import ImportedModel, ModelRequest, imported, name_in

SEED = 0
NUM_ROWS = 2
"""Fewest rows that batch normalisation trains on."""
FACTS = ("feature_shape", "num_features", "num_classes", "vocabulary_size")
"""Names of a factory's possible arguments."""


def own_model(request: ModelRequest) -> ImportedModel:
    """Return the factory of the model that `settings.kind` names, after a trial run on dummy rows.

    Raises:
        ConfigurationError: If it can't be imported or built, or does not work on such rows.
    """
    path = request.settings.kind
    request.check((), (request.data_kind,))
    return _checked_factory("model.kind", path, request, trains=True)


def own_extractor(path: str, request: ModelRequest) -> ImportedModel:
    """Return the factory of a network that maps rows to vectors of any length, after a trial run on dummy rows.

    Args:
        path: `package.module:factory`, the value of `federation.embedding`.
        request: Shape and kind of the rows.

    Raises:
        ConfigurationError: If it can't be imported or built, or does not work on such rows.
    """
    return _checked_factory("federation.embedding", path, request, trains=False)


def _checked_factory(key: str, path: str, request: ModelRequest, trains: bool) -> ImportedModel:
    subject = f"{key}={path}"
    if path.partition(":")[0].partition(".")[0] in sys.stdlib_module_names:
        raise ConfigurationError.of(
            subject, "be in your own module or in an installed package", "a module of Python's standard library"
        )
    with redirect_stdout(sys.stderr):  # standard output is for results, not for what a module prints
        module = _module_of(path, subject)
        arguments = _arguments(_factory_in(module, path, subject), request, subject)
        factory = ImportedModel(path, path, arguments, _folders(module))
        with torch.random.fork_rng(devices=[]):
            (_check_model if trains else _check_extractor)(factory, request, subject)
    return factory


def _module_of(path: str, subject: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        return imported(path, (os.getcwd(),))
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        must = "be importable from the Python path or the working directory"
        raise ConfigurationError.of(subject, must, _in_a_line(error)) from error


def _factory_in(module: ModuleType, path: str, subject: str) -> Callable[..., Any]:
    named_object: Any = getattr(module, name_in(path), None)
    factory = named_object
    while isinstance(factory, partial):
        factory = factory.func
    if inspect.isfunction(factory):
        _check_returned(factory, subject)
    if inspect.isfunction(factory) or (inspect.isclass(factory) and issubclass(factory, nn.Module)):
        return named_object  # type: ignore[no-any-return]
    got = f"an object of type {type(named_object).__name__}"
    if named_object is None:
        got = f"nothing of that name in {getattr(module, '__file__', None) or 'a package without a file'}"
    raise ConfigurationError.of(subject, "name a subclass of torch.nn.Module or a function that returns a module", got)


def _check_returned(function: FunctionType, subject: str) -> None:
    """Check that a function is annotated to return a module, or has no annotation and is user code."""
    try:
        returned = typing.get_type_hints(function).get("return")
    except Exception:  # names that are there for a type checker alone
        returned = None
    says_module = inspect.isclass(returned) and issubclass(returned, nn.Module)
    if inspect.isclass(returned) and not says_module and returned is not object:
        raise ConfigurationError.of(
            subject, "return a torch.nn.Module", f"a function annotated with {returned.__name__}"
        )
    if not says_module and not is_own(function.__module__):
        raise ConfigurationError.of(
            subject,
            "be your own function, or be annotated with the torch.nn.Module that it returns",
            f"one of {function.__module__} without such an annotation",
        )


def _arguments(factory: Callable[..., Any], request: ModelRequest, subject: str) -> tuple[tuple[str, Any], ...]:
    """Return the facts that the factory takes by name."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # written in C
        return ()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    taken = [parameter.name for parameter in parameters if parameter.kind in by_name and parameter.name in FACTS]
    unknown = [
        parameter.name
        for parameter in parameters
        if parameter.name not in taken
        and parameter.kind not in variable
        and parameter.default is inspect.Parameter.empty
    ]
    if unknown:
        raise ConfigurationError.of(
            subject,
            f"not require arguments other than {', '.join(FACTS)}, passed by name",
            hint=f"got {', '.join(unknown)}",
        )
    return tuple((name, getattr(request, name)) for name in taken)


def _folders(module: ModuleType) -> tuple[str, ...]:
    """Return the module's import folder and the working directory."""
    top = sys.modules[module.__name__.partition(".")[0]]
    locations = [Path(location).parent for location in getattr(top, "__path__", ())]
    if not locations and getattr(top, "__file__", None):
        locations = [Path(str(top.__file__)).parent]
    folders = [str(location.absolute()) for location in [*locations, Path.cwd()]]
    return tuple(dict.fromkeys(folders))


def _check_model(factory: ImportedModel, request: ModelRequest, subject: str) -> None:
    """Check that a module can be built, trained for a step and evaluated."""
    module = _module(factory, subject)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigurationError.of(subject, "have trainable parameters", "none")
    module.train()
    rows = _empty_rows(request)
    with _named_failure(subject, rows):
        outputs = module(rows)
    _check_logits(subject, outputs, (NUM_ROWS, request.num_classes))
    if not outputs.requires_grad:
        raise ConfigurationError.of(subject, "have outputs that depend on its parameters", "outputs without a gradient")
    labels = torch.zeros(NUM_ROWS, dtype=torch.int64)
    with _named_failure(subject, rows):
        nn.functional.cross_entropy(outputs, labels).backward()  # type: ignore[no-untyped-call]
    _check_logits(subject, _evaluated(module, rows[:1], subject), (1, request.num_classes))


def _check_extractor(factory: ImportedModel, request: ModelRequest, subject: str) -> None:
    """Check that a network that maps rows to vectors can be built and evaluated."""
    module = _module(factory, subject)
    for num_rows in (NUM_ROWS, 1):
        outputs = _evaluated(module, _empty_rows(request)[:num_rows], subject)
        if not isinstance(outputs, Tensor) or outputs.dim() < 2 or len(outputs) != num_rows or not outputs.numel():
            must = f"return one vector per row, shape ({num_rows}, length)"
            raise ConfigurationError.of(subject, must, _output_text(outputs))


def _module(factory: ImportedModel, subject: str) -> nn.Module:
    """Return the module in the form that the engine uses."""
    module = _built(factory, subject)
    _check_tensors(module, subject)
    vector = FlatModel(module).vector
    if not torch.equal(FlatModel(_built(factory, subject)).vector, vector):
        raise ConfigurationError.of(
            subject,
            "draw its parameters only from torch's random numbers, so that studies are reproducible",
            "different parameters with the same seed",
        )
    return module


def _evaluated(module: nn.Module, rows: Tensor, subject: str) -> Any:
    module.eval()
    with torch.no_grad(), _named_failure(subject, rows):
        return module(rows)


def _built(factory: ImportedModel, subject: str) -> nn.Module:
    torch.manual_seed(SEED)
    try:
        module = factory()
    except (Exception, SystemExit) as error:  # a user's factory may raise anything
        given = ", ".join(f"{name}={value}" for name, value in factory.arguments) or "no arguments"
        raise ConfigurationError.of(subject, f"build a module from {given}", _in_a_line(error)) from error
    if not isinstance(module, nn.Module):
        raise ConfigurationError.of(subject, "return a torch.nn.Module", type(module).__name__)
    return module


def _check_tensors(module: nn.Module, subject: str) -> None:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    if lazy := [name for name, tensor in tensors if is_lazy(tensor)]:
        raise ConfigurationError.of(subject, "have all shapes fixed when it is built", f"a lazy layer with {lazy[0]!r}")
    if not any(tensor.is_floating_point() for _, tensor in tensors):
        raise ConfigurationError.of(subject, "have parameters", "none")
    faults = [
        Fault(subject, "hold float32 numbers on the CPU", f"{name!r} of {tensor.dtype} on {tensor.device}")
        for name, tensor in tensors
        if tensor.device.type != "cpu" or (tensor.dtype != torch.float32 and not _is_counter(name, tensor, module))
    ]
    faults += [
        Fault(subject, "start from finite numbers", f"{name!r} with nan or inf")
        for name, tensor in tensors
        if tensor.device.type == "cpu" and not tensor.isfinite().all()
    ]
    if faults:
        raise ConfigurationError(faults)


def _is_counter(name: str, tensor: Tensor, module: nn.Module) -> bool:
    """Return whether it is an integer buffer, such as batch normalization's count of batches."""
    return name not in dict(module.named_parameters()) and not tensor.is_floating_point() and not tensor.is_complex()


def _empty_rows(request: ModelRequest) -> Tensor:
    """Return one row of zeros and one of the largest token (zeros if rows are no tokens)."""
    rows = torch.zeros(NUM_ROWS, *request.feature_shape)
    rows[1] = max(0, request.vocabulary_size - 1)
    return rows


def _check_logits(subject: str, outputs: Any, expected: tuple[int, int]) -> None:
    if not isinstance(outputs, Tensor) or outputs.shape != expected or outputs.dtype != torch.float32:
        must = f"return one float32 number per row and class, shape {expected}"
        raise ConfigurationError.of(subject, must, _output_text(outputs))


def _output_text(outputs: Any) -> str:
    if isinstance(outputs, Tensor):
        return f"shape {tuple(outputs.shape)} of {outputs.dtype}"
    return type(outputs).__name__


@contextmanager
def _named_failure(subject: str, rows: Tensor) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:  # a user's layer may raise anything
        rows_text = f"{len(rows)} row{'s' if len(rows) > 1 else ''} of shape {tuple(rows.shape[1:])}"
        raise ConfigurationError.of(subject, f"work on {rows_text}", _in_a_line(error)) from error


def _in_a_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
