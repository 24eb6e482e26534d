"""Puts small faults into a module, one at a time, and prints which of them its tests do not notice.

    python -m tests.mutation detectors/outliers.py tests/detectors/test_outliers.py --sample 30 --seed 0

The faults are put into a copy of the repository. A fault is noticed if a test fails or takes far too long. Some that
are not noticed change nothing that can be observed, such as `<` in place of `<=` where both sides are never equal.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
HEAVY = ("tests.conftest", "scipy.stats", "scipy.optimize", "torch", "flwr.serverapp", "pytest")
"""Imported once, by the process of which those that run tests are copies; the first one sets the environment."""

PAIRS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot)),
    *((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr), (ast.And, ast.Or), (ast.USub, ast.UAdd)),
)
OTHERS = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])} | {ast.FloorDiv: ast.Mult}


def faults(tree: ast.Module) -> Iterator[tuple[int, str, Callable[[], None]]]:
    """Yield line and description of all faults, and what puts them into the tree; none is in an annotation."""
    hints = (getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns"))
    ignored = {id(part) for hint in hints if hint is not None for part in ast.walk(hint)}
    for node in ast.walk(tree):
        for field, values in ast.iter_fields(node) if id(node) not in ignored else ():
            for place, value in enumerate(values if isinstance(values, list) else [values]):
                put = partial(values.__setitem__, place) if isinstance(values, list) else partial(setattr, node, field)
                for words, new in _replacements(node, value):
                    yield getattr(value, "lineno", getattr(node, "lineno", 0)), words, partial(put, new)


def _replacements(node: ast.AST, value: object) -> Iterator[tuple[str, object]]:
    """Yield descriptions and faulty values of what is in a field of a node."""
    if other := OTHERS.get(type(value)):
        yield f"{type(value).__name__} -> {other.__name__}", other()
    match value:
        case ast.Expr(ast.Call() | ast.Yield()) | ast.AugAssign() | ast.Raise() | ast.Break() | ast.Continue():
            yield f"without {ast.unparse(value)}", ast.Pass()
        case ast.UnaryOp(ast.Not()):
            yield f"{ast.unparse(value.operand)}", value.operand
        case bool():
            yield f"{value} -> {not value}", not value
        case int() | float() if isinstance(node, ast.Constant):
            yield from ((f"{value} -> {new}", new) for new in (value + 1, value - 1))
        case ast.AST() if isinstance(node, ast.Return) and ast.unparse(value) != "None":
            yield "return None", None


def with_fault(source: str, number: int) -> tuple[str, str]:
    """Return the source with one fault, and the line and description of it."""
    tree = ast.parse(source)
    line, words, put = list(faults(tree))[number]
    put()
    return ast.unparse(ast.fix_missing_locations(tree)), f"{line}: {words}: {source.splitlines()[line - 1].strip()}"


def is_noticed(copy: Path, tests: list[str], seconds: int) -> bool:
    """Return whether a test fails in a copy of the repository, or all take more than some seconds of a processor."""
    if child := os.fork():
        return os.waitpid(child, 0)[1] != 0
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    sys.dont_write_bytecode = False  # tests are compiled once
    os.chdir(copy)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "fedscout")]:
        del sys.modules[name]
    options = ["-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    os._exit(int(sys.modules["pytest"].main([*options, "-m", "not slow and not stress", *tests])))


def main() -> None:
    """Print the faults that are not noticed, and how many are."""
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--sample", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for name in HEAVY:
        importlib.import_module(name)
    source = (REPOSITORY / asked.module).read_text()
    count = len(list(faults(ast.parse(source))))
    drawn = random.Random(asked.seed).sample(range(count), min(asked.sample, count))
    unnoticed = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        shutil.copytree(REPOSITORY, copy, symlinks=True, ignore=shutil.ignore_patterns(".*", "shared", "site"))
        assert not is_noticed(copy, asked.tests, 3600), "the tests fail without a fault"
        seconds = 30 + 3 * int(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime)
        for position, number in enumerate(drawn):
            text, words = with_fault(source, number)
            (copy / asked.module).write_text(text)
            os.utime(copy / asked.module, (position, position))  # or what was compiled before may seem to be new
            if not is_noticed(copy, asked.tests, seconds):
                unnoticed.append(words)
                print(f"{asked.module}:{words}", flush=True)
    print(f"{len(drawn) - len(unnoticed)} of {len(drawn)} faults are noticed; {count} are possible")


if __name__ == "__main__":
    main()
