"""Clients side by side on a device: `torch.func` makes of one module's gradient that of many clients' models.

A lane's batches are padded to a number of rows that depends on its client alone; lanes without a client and batches
that a client does not have count for nothing. Of lanes there is a fixed number, or fewer where few clients train and
their bits are the same in fewer. So a client's bits do not depend on who trains beside it, nor on how clients are
spread over hosts.

Whether they depend on the lane, or on how many there are, is tried before lanes of some shape are used, on rows that
all hosts have. So is whether `torch.func` can express the module, which it can't where layers draw random numbers, but
for plain dropout (`lane_dropout`), or change what they keep. Rows of a batch must not see one another, as padding is
among them, so nets with batch normalisation have no lanes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_algorithm import Correct, Steps
from fedscout.engine.data.client_data import Samples
from fedscout.engine.model.flat_model import FlatModel
from fedscout.engine.model.row_loss import RowLoss
from fedscout.engine.seeds import stream
from fedscout.engine.training.client_optimizers import Optimizer, new_optimizer
from fedscout.engine.training.lane_dropout import LaneDropout
from fedscout.engine.training.lane_loss import Beyond, LaneLoss, Tensors
from fedscout.engine.training.lane_plan import ROW_STEP, LanePlan, lane_rows
from fedscout.engine.training.local_training import RowsWork
from fedscout.engine.training.representation import Representation
from fedscout.engine.training.resident_rows import Reached, ResidentRows, sent
from fedscout.engine.training.vectorised_training import BlockDescent

ROWS_MIXED = (nn.modules.batchnorm._BatchNorm,)
"""Layers that look at a batch as a whole."""

LANE_BYTES = 2**30
"""Of all clients side by side: weights, gradients, an optimiser's two moments, what layers give forth and back."""

COPIES = 4
"""Of the weights, in that."""

DEVICE_FAULT = re.compile("CUDA error|CUBLAS_STATUS|CUDNN_STATUS")
"""What a device that can't go on says, such as one whose memory others have taken: nothing of the module."""

MOST_LANES, USUAL_ROWS = 64, 32


class ClientLanes:
    """The training of some clients at once.

    How many lie side by side depends on the model, the rows of a batch and the federation alone, never on the memory
    that happens to be free, so that it is the same on every host. Where memory runs out all the same, half as many go
    on; results then are those of that many lanes, the last bits of which may be others.

    Args:
        model: On the device.
        rows: On the same.
        probe: Rows on which lanes are tried, the same on all hosts; at least one.
        most: Lanes that make sense.

    Attributes:
        num_halved: How often memory ran out.
        serve: Whether lanes can train this model, and several are worth the while.
    """

    def __init__(self, model: FlatModel, rows: ResidentRows, probe: Samples, most: int = MOST_LANES) -> None:
        self.num_halved = 0
        self._model = model
        self._rows = rows
        self._probe = probe
        self._most = most
        self._values_a_row = 0
        self._dropout = LaneDropout(model.module)
        self._served: dict[tuple[int, int, bool], bool] = {}
        self._alike: dict[tuple[int, int, int, bool], bool] = {}
        mixed = any(isinstance(part, ROWS_MIXED) for part in model.module.modules())
        self.serve = not mixed and self._expressible() and self.num_lanes(USUAL_ROWS) > 1

    def num_lanes(self, num_rows: int, narrow: bool = False) -> int:
        """Return how many clients with batches of so many rows lie side by side, a power of two.

        Args:
            num_rows: Of a batch.
            narrow: Whether layers compute in bfloat16.
        """
        shape = lanes, *_ = self._wanted(num_rows), num_rows, narrow
        if shape not in self._served:
            self._served[shape] = lanes == 1 or self._same_in_any_lane(*shape)
        return lanes if self._served[shape] else 1

    def _lanes_for(self, num_clients: int, num_rows: int, narrow: bool) -> int:
        """Return in how many lanes so many clients go: fewer than there are where that has the same bits."""
        lanes = self.num_lanes(num_rows, narrow)
        few = 1 << (num_clients - 1).bit_length()
        while few < lanes:
            shape = few, lanes, num_rows, narrow
            if shape not in self._alike:
                self._alike[shape] = self._same_in_few_lanes(*shape)
            if self._alike[shape]:
                return few
            few *= 2
        return lanes

    def _wanted(self, num_rows: int) -> int:
        """Return how many lanes there is room for."""
        bytes_each = 4 * (COPIES * self._model.layout.size + 2 * num_rows * self._values_a_row)
        room = max(1, min(self._most, LANE_BYTES // bytes_each))
        lanes = 1 << (int(room).bit_length() - 1)
        return max(1, lanes >> self.num_halved)

    def descend(
        self,
        start: Tensor,
        works: Sequence[RowsWork],
        how: Steps,
        received: Tensor,
        generators: Sequence[torch.Generator],
    ) -> BlockDescent:
        """Make all local steps of some clients.

        Args:
            start: Where to begin, shape `(size,)` or `(clients, size)`; this and all vectors may be in any memory.
            works: Each with rows, all of one source.
            how: Without a loss of its own and without looking ahead.
            received: The model that tells pseudo-labels, shape `(size,)`.
            generators: Of each client, from which its layers draw.
        """
        alike: dict[int, list[int]] = {}
        for position, work in enumerate(works):
            alike.setdefault(lane_rows(len(work.data), work.training or how.training), []).append(position)
        vectors = torch.empty(len(works), self._model.layout.size)
        num_steps, losses = [0] * len(works), [0.0] * len(works)
        for num_rows, members in alike.items():
            waiting = members
            while waiting:
                drawn_from = [works[position].generator.bit_generator.state for position in waiting]
                layers_drew_from = [generators[position].get_state() for position in waiting]
                number = self._wanted(num_rows)
                try:
                    number = self._lanes_for(len(waiting), num_rows, how.training.is_narrow)
                    lanes = _Lanes(number, num_rows, waiting)
                    made = self._descend(lanes, start, works, how, received, generators)
                except torch.OutOfMemoryError:
                    self._halve(number, num_rows)
                    for position, state in zip(waiting, drawn_from, strict=True):
                        works[position].generator.bit_generator.state = state
                    for position, layers_state in zip(waiting, layers_drew_from, strict=True):
                        generators[position].set_state(layers_state)
                    continue
                vectors[lanes.clients] = made.vectors
                for position, steps, loss in zip(lanes.clients, made.num_steps, made.losses, strict=True):
                    num_steps[position], losses[position] = steps, loss
                waiting = waiting[len(lanes.clients) :]
        return BlockDescent(vectors, num_steps, losses)

    def _halve(self, num_lanes: int, num_rows: int) -> None:
        """Have half of so many lanes from now on.

        Raises:
            OutOfMemoryError: That of torch, if there is but one.
        """
        if num_lanes == 1:
            raise torch.OutOfMemoryError(
                f"the device has too little memory for one client with batches of {num_rows} rows"
            )
        while self._wanted(num_rows) >= num_lanes:
            self.num_halved += 1

    def _descend(
        self,
        lanes: _Lanes,
        start: Tensor,
        works: Sequence[RowsWork],
        how: Steps,
        received: Tensor,
        generators: Sequence[torch.Generator],
    ) -> BlockDescent:
        """Make the steps of those of some clients that are in the lanes."""
        rates = rates_of(works)
        works = [works[position] for position in lanes.clients]
        plan = LanePlan.of(works, how.training, lanes.number, lanes.num_rows)
        in_lanes = partial(lanes.filled, plan.order, device=self._model.device)
        weights, buffers = self._tensors(in_lanes(start))
        beside = [self._tensors(in_lanes(vectors))[0] for vectors in how.beside]
        drawn_from = [generators[lanes.clients[place]] for place in plan.order]
        self._model.module.train()
        with Representation(self._model) as seen, self._dropout as dropout:
            loss = LaneLoss(self._model.module, how.weighed, how.compared, seen, dropout, how.training.is_narrow)
            found = self._rows.reach(works[0].data, plan.rows)
            beyond = self._beyond(how, received, in_lanes)
            optimizer = new_optimizer(how.training, None if rates is None else self._here(in_lanes(rates)))
            sums = self._make_steps(
                plan, found, weights, buffers, beside, beyond, loss, how.correct, optimizer, drawn_from
            )
        trained = torch.cat([part.flatten(1) for part in (*weights.values(), *buffers.values())], dim=1).cpu()
        lane_of = np.argsort(plan.order)
        num_seen = plan.sizes.sum(axis=0)
        return BlockDescent(
            vectors=trained[torch.from_numpy(lane_of)],
            num_steps=plan.num_steps.tolist(),
            losses=[float(sums[lane]) / float(num_seen[lane]) for lane in lane_of],
        )

    def _beyond(self, how: Steps, received: Tensor, in_lanes: Callable[[Tensor], Tensor]) -> Beyond:
        """Return what losses look at beside models and rows."""
        beyond: dict[str, object] = {}
        if how.adjusted is not None:
            parts = {"scale": how.adjusted.scale, "shift": how.adjusted.shift}
            beyond |= {name: self._here(in_lanes(part)) for name, part in parts.items() if part is not None}
        if how.compared is not None:
            beyond["others"] = [self._all_tensors(in_lanes(vectors)) for vectors in how.compared.others]
        if how.weighed.pseudo_label:
            beyond["teacher"] = self._all_tensors(in_lanes(received))
        return beyond

    def _make_steps(
        self,
        plan: LanePlan,
        found: Reached,
        weights: Tensors,
        buffers: Tensors,
        beside: Sequence[Tensors],
        beyond: Beyond,
        loss: LaneLoss,
        correct: Correct | None,
        optimizer: Optimizer,
        generators: Sequence[torch.Generator],
    ) -> Tensor:
        """Change the weights by all steps, and return each lane's loss summed over the rows that it saw, float64."""
        gradient_of = _gradient_of(loss)
        shares, sizes = (self._here(torch.from_numpy(array)) for array in (plan.shares, plan.sizes))
        sums = torch.zeros_like(sizes[0])
        for step, num_active in enumerate(plan.num_active):
            worn = beyond
            if loss.dropout.draws:
                masks = loss.dropout.drawn(generators[:num_active], plan.sizes[step].astype(int), plan.rows.shape[2])
                worn = {**beyond, "masks": [self._here(mask) for mask in masks]}
            gradient, means = gradient_of(weights, buffers, *_batch(found, step), shares[step], worn)
            sums += means.double() * sizes[step]
            at, slopes, *others = (_firsts(tensors, num_active) for tensors in (weights, gradient, *beside))
            if correct is not None:
                for parts in zip(at, slopes, *others, strict=True):
                    correct(*parts)
            optimizer.step_all(at, slopes)
        return sums.cpu()

    def _expressible(self) -> bool:
        """Return whether `torch.func` takes the module, and count what its layers give of a row."""
        counts: list[int] = []

        def count(layer: nn.Module, inputs: object, outputs: object) -> None:
            del layer, inputs
            counts.append(outputs.numel() if isinstance(outputs, Tensor) else 0)

        leaves = [part for part in self._model.module.modules() if not list(part.children())]
        handles = [leaf.register_forward_hook(count) for leaf in leaves]
        try:
            self._tried_gradient(1, ROW_STEP, turned=False)
            self._dropout.known()
        except Exception as error:  # what is not about lanes comes again with the client's own rows, one by one
            if isinstance(error, torch.OutOfMemoryError) or DEVICE_FAULT.search(str(error)):
                raise
            return False
        finally:
            for handle in handles:
                handle.remove()
        self._values_a_row = sum(counts) // ROW_STEP
        return True

    def _same_in_any_lane(self, num_lanes: int, num_rows: int, narrow: bool) -> bool:
        """Compare the gradients of some clients with those of the same ones in the opposite order."""
        there, back = (self._tried_gradient(num_lanes, num_rows, turned, narrow) for turned in (False, True))
        return all(torch.equal(there[name], back[name].flip(0)) for name in there)

    def _same_in_few_lanes(self, few: int, num_lanes: int, num_rows: int, narrow: bool) -> bool:
        """Compare the gradients of the first clients with those that they have without the others."""
        many = self._tried_gradient(num_lanes, num_rows, False, narrow)
        alone = self._tried_gradient(num_lanes, num_rows, False, narrow, few)
        return all(torch.equal(many[name][:few], alone[name]) for name in alone)

    def _tried_gradient(
        self, num_lanes: int, num_rows: int, turned: bool, narrow: bool = False, few: int | None = None
    ) -> Tensors:
        """Return the gradients of some clients with batches of the probe's rows, of the first `few` if that is said."""
        generator = stream(0, "lanes")
        factors = torch.from_numpy(generator.uniform(0.9, 1.1, (num_lanes, 1))).float()
        vectors = self._model.vector.cpu() * factors
        rows = self._probe.rows[generator.integers(len(self._probe), size=(1, num_lanes, num_rows))]
        if turned:
            vectors, rows = vectors.flip(0), np.ascontiguousarray(rows[:, ::-1])
        vectors, rows = vectors[:few], rows[:, :few]
        weights, buffers = self._tensors(vectors)
        shares = torch.full((len(vectors), num_rows), 1 / num_rows, device=self._model.device)
        batch = _batch(self._rows.reach(self._probe, rows), 0)
        self._model.module.train()
        with self._dropout as dropout:
            loss = LaneLoss(self._model.module, RowLoss(), None, Representation(self._model), dropout, narrow)
            gradient: Tensors = _gradient_of(loss)(weights, buffers, *batch, shares, {})[0]
        return gradient

    def _here(self, tensor: Tensor) -> Tensor:
        return sent(tensor, self._model.device)

    def _tensors(self, vectors: Tensor) -> tuple[Tensors, Tensors]:
        """Return copies of vectors on the device, shape `(lanes, size)`, as parameters and buffers by name."""
        layout = self._model.layout
        sizes = [slot.size for slot in layout.slots]
        parts = {
            slot.name: part.clone(memory_format=torch.contiguous_format).view(-1, *slot.shape)
            for slot, part in zip(layout.slots, self._here(vectors).split_with_sizes(sizes, dim=1), strict=True)
        }
        return {slot.name: parts.pop(slot.name) for slot in layout.parameters}, parts

    def _all_tensors(self, vectors: Tensor) -> Tensors:
        weights, buffers = self._tensors(vectors)
        return {**weights, **buffers}


def rates_of(works: Sequence[RowsWork]) -> Tensor | None:
    """Return the step size of each client, float64, shape `(clients, 1)`; None without settings of their own.

    Where they have, also where all are equal, as kernels must be the same whoever is beside whom.
    """
    own = [work.training.learning_rate for work in works if work.training is not None]
    return torch.tensor(own, dtype=torch.float64)[:, None] if own else None


def _gradient_of(loss: LaneLoss):  # type: ignore[no-untyped-def]  # torch.func's own type
    """Return the function of all lanes' tensors and batches that gives their gradients and losses."""
    return vmap(grad_and_value(loss), randomness="error")


class _Lanes:
    """Some lanes, and who is in them.

    Args:
        number: Side by side.
        num_rows: Of each batch.
        waiting: Clients by their positions in a run; the first of them, as many as there are lanes, are in them.
    """

    def __init__(self, number: int, num_rows: int, waiting: Sequence[int]) -> None:
        self.number = number
        self.num_rows = num_rows
        self.clients = list(waiting[:number])

    def filled(self, order: IntArray, vectors: Tensor, device: torch.device) -> Tensor:
        """Return what clients have, lane by lane; lanes without a client repeat others.

        Args:
            order: Of the clients by lane.
            vectors: Shape `(size,)`, the same for all, `(1, size)`, or one row for each of the run's clients.
            device: Where one for all is sent ahead of being repeated; rows are where they were.
        """
        if vectors.numel() == vectors.shape[-1]:
            return sent(vectors.view(1, -1), device).expand(self.number, -1)
        clients = np.asarray(self.clients)[np.resize(order, self.number)]
        return vectors[torch.from_numpy(clients)]


def _batch(found: Reached, step: int) -> tuple[Tensor, Tensor]:
    """Return the rows of a step, shape `(lanes, rows, *feature_shape)`, and their answers."""
    places = found.places[step]
    rows = found.features.index_select(0, places.flatten())
    return rows.view(*places.shape, *rows.shape[1:]), found.answers[step]


def _firsts(tensors: Tensors, num_active: int) -> list[Tensor]:
    """Return the first lanes' tensors, each `(lanes, elements)`; views of those that are contiguous, as weights are."""
    return [part[:num_active].reshape(num_active, -1) for part in tensors.values()]
