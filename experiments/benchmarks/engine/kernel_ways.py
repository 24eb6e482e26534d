"""What a step of the larger models takes on one core by PyTorch's other ways, beside ours.

Each way makes the same step on a batch of 32 rows: forward, mean cross-entropy, backward, plain descent. Rows are at
hand, where ours gathers them, too. *Grouped* has four clients' models side by side, of which `torch.func` makes grouped
convolutions, and is told a client. A way that fails here says why: compiling needs a C++ compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedscout.engine.data.client_data import Samples
from fedscout.engine.runtime.kept_memory import keep_freed_memory
from fedscout.experiments.benchmarks.engine.kernel_bench import BATCH_ROWS, REQUESTS, rows_of, shortest, step_seconds
from fedscout.experiments.federations.models.model_table import MODELS
from fedscout.experiments.reports.markdown_table import markdown_table

RATE = 1e-3
TOGETHER = 4
OURS = "ours"

Factory = Callable[[], nn.Module]
Step = Callable[[], object]


class WayTiming(BaseModel, frozen=True):
    """One way on one model.

    Attributes:
        model: Of the table of models.
        way: By which a step is made.
        seconds: A client's step; None if it can't be made.
        failure: Why.
    """

    model: str
    way: str
    seconds: float | None
    failure: str = ""


def way_timings(turns: int) -> Iterator[WayTiming]:
    """Yield the timing of each way on each model, of so many turns the shortest."""
    torch.set_num_threads(1)
    keep_freed_memory()
    for request in REQUESTS:
        factory, data = MODELS[request.settings.kind](request), rows_of(request)
        yield WayTiming(model=str(factory), way=OURS, seconds=step_seconds(factory, data, turns))
        for way, (made, clients) in WAYS.items():
            try:
                seconds = shortest(made(factory, *_batch(data)), turns) / clients
            except Exception as error:  # of a library; the others go on
                reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
                yield WayTiming(model=str(factory), way=way, seconds=None, failure=reason)
            else:
                yield WayTiming(model=str(factory), way=way, seconds=seconds)


def _batch(data: Samples) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(data.features[:BATCH_ROWS]), torch.from_numpy(data.labels[:BATCH_ROWS])


def _plain(factory: Factory, rows: Tensor, labels: Tensor) -> Step:
    return _descent(factory(), rows, labels)


def _channels_last(factory: Factory, rows: Tensor, labels: Tensor) -> Step:
    if rows.dim() != 4:
        raise ValueError("rows are no images")
    module = factory().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return _descent(module, rows.contiguous(memory_format=torch.channels_last), labels)


def _compiled(factory: Factory, rows: Tensor, labels: Tensor) -> Step:
    return _descent(factory(), rows, labels, torch.compile)


def _half(factory: Factory, rows: Tensor, labels: Tensor) -> Step:
    step = _descent(factory(), rows, labels)

    def narrower() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            step()

    return narrower


def _descent(
    module: nn.Module,
    rows: Tensor,
    labels: Tensor,
    wrapped: Callable[[nn.Module], Callable[[Tensor], Tensor]] | None = None,
) -> Step:
    called = module if wrapped is None else wrapped(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(called(rows), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _grouped(factory: Factory, rows: Tensor, labels: Tensor) -> Step:
    modules = [factory() for _ in range(TOGETHER)]
    weights, buffers = stack_module_state(modules)
    every_row, every_label = rows.expand(TOGETHER, *rows.shape), labels.expand(TOGETHER, -1)

    def loss(own: dict[str, Tensor], kept: dict[str, Tensor], rows: Tensor, labels: Tensor) -> Tensor:
        outputs = functional_call(modules[0], {**own, **kept}, (rows,))
        return nn.functional.cross_entropy(outputs, labels)

    gradients = vmap(grad(loss), randomness="different")

    def step() -> None:
        found = gradients({name: each.detach() for name, each in weights.items()}, buffers, every_row, every_label)
        with torch.no_grad():
            for name, gradient in found.items():
                weights[name].sub_(gradient, alpha=RATE)

    return step


WAYS: dict[str, tuple[Callable[[Factory, Tensor, Tensor], Step], int]] = {
    "autograd": (_plain, 1),
    "channels last": (_channels_last, 1),
    "bfloat16": (_half, 1),
    "torch.compile": (_compiled, 1),
    "grouped": (_grouped, TOGETHER),
}
"""How a step is made, and of how many clients."""


def table_lines(timings: list[WayTiming]) -> list[str]:
    """Return milliseconds a step for people, and why some are missing."""
    found = {(each.model, each.way): each for each in timings}
    models, ways = (list(dict.fromkeys(names)) for names in zip(*found, strict=True))
    missing = [f"{each.way}, {each.model}: {each.failure}" for each in timings if each.seconds is None]

    def cell(model: str, way: str) -> str:
        seconds = found[model, way].seconds
        return "–" if seconds is None else f"{1e3 * seconds:.2f}"

    rows = [(model, *(cell(model, way) for way in ways)) for model in models]
    return [*markdown_table((f"a step of {BATCH_ROWS} rows, ms", *ways), rows), *missing]
