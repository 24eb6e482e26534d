"""Training of many clients side by side ("in lanes") on a device, by `torch.func.vmap`.

A lane's batches are padded to a number of rows that depends only on its client; lanes without a client and batches that
a client does not have get weight zero. The number of lanes is fixed, or smaller for few clients if their results are
bit-identical in fewer lanes. So a client's bits do not depend on the other clients, nor on the distribution of clients
over hosts.

Whether results depend on the lane, or on the number of lanes, is tested before lanes of a shape are used, on rows that
all hosts have. So is whether `torch.func` can express the module: it can't if layers draw random numbers, except for
plain dropout, or change buffers. The rows of a batch must be independent, as padding is among them, so nets with batch
normalisation are not trained in lanes.

- `LaneDropout`: `torch.func` can't draw random numbers, so dropout masks are drawn outside and passed with each batch.
  Each client has its own generator (`layer_generators`) and draws batch after batch, layer after layer, only for rows
  without padding, in any lane. In lanes a dropout layer is an identity, and a hook applies its mask.
- `LaneLoss`: the loss of one client's batch as a function of its model's tensors, which `torch.func` vectorises.
- `LanePlan`: the rows of each step, lane and batch position, as arrays of one shape for all clients.
- `ResidentRows`: source arrays are copied to the device once, so that a round sends indices instead of rows. If a
  source exceeds its share of the device's memory, the rows that a block of clients reads are sent with it.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import ContrastiveLoss, Descent, Steps
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Samples
from fedscout.engine.models.flat import FlatModel
from fedscout.engine.models.layout import Adjusted, RowLoss
from fedscout.engine.seeds import stream
from fedscout.engine.training.loop import Representation, RowsWork, epoch_orders, mean_loss, new_optimizer
from fedscout.engine.training.vectorised import dropout_masks, schedule


class LaneDropout:
    """The dropout layers of one module; entered while clients are in lanes.

    Args:
        module: Its plain elementwise dropout layers are handled; other random layers are left unchanged.
    """

    def __init__(self, module: nn.Module) -> None:
        self._layers = [part for part in module.modules() if type(part) is nn.Dropout and 0 < part.p < 1]
        self._calls: list[tuple[tuple[int, ...], float]] = []
        self._recording = True
        self._masks: Iterator[Tensor] | None = None
        self._undo: list[tuple[nn.Module, bool, torch.utils.hooks.RemovableHandle]] = []

    def __enter__(self) -> Self:
        for layer in self._layers:
            self._undo.append((layer, layer.training, layer.register_forward_hook(self._apply_mask)))
            layer.eval()
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            layer, training, handle = self._undo.pop()
            handle.remove()
            layer.train(training)

    def known(self) -> None:
        """Stop recording: the calls so far are the dropout layers of one pass, in order."""
        self._recording = False

    @property
    def draws(self) -> bool:
        """Whether any dropout layer is called."""
        return bool(self._calls)

    def drawn(self, generators: Sequence[torch.Generator], sizes: IntArray, num_rows: int) -> list[Tensor]:
        """Return each dropout layer's factors, 0 or 1 / (1 − p), and 0 for padding; shape `(lanes, rows, *row_shape)`.

        Args:
            generators: The client's generator of each lane with a client.
            sizes: Rows without padding of its batch, by lane.
            num_rows: Rows of a batch with padding.
        """
        return dropout_masks(self._calls, generators, sizes, num_rows)

    @contextmanager
    def with_masks(self, masks: Sequence[Tensor]) -> Iterator[None]:
        """Apply one client's masks inside the block, in the order of the layers' calls."""
        self._masks = iter(masks)
        try:
            yield
        finally:
            self._masks = None

    def _apply_mask(self, layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor | None:
        assert isinstance(layer, nn.Dropout)
        if self._recording:
            self._calls.append((tuple(outputs.shape[1:]), layer.p))
        mask = None if self._masks is None else next(self._masks, None)
        return None if mask is None else outputs * mask


Tensors = dict[str, Tensor]

Beyond = Mapping[str, Any]
"""`scale` and `shift` of `Adjusted`, `teacher` and `others`, tensors of models by name, and of each batch `masks` of
dropout, which is not among these; unused ones are absent."""


@dataclass(frozen=True)
class LaneLoss:
    """The loss that local training minimises.

    Attributes:
        module: Called with other tensors than its own.
        row_loss: Weights and additional terms of the cross-entropy.
        compared: Additional loss on the representations of rows.
        seen: The module's representation, entered.
        dropout: The module's dropout, entered.
        narrow: Whether layers compute in bfloat16, as far as PyTorch's autocast does.
    """

    module: nn.Module
    row_loss: RowLoss
    compared: ContrastiveLoss | None
    seen: Representation
    dropout: LaneDropout
    narrow: bool = False

    def __call__(
        self, weights: Tensors, buffers: Tensors, rows: Tensor, answers: Tensor, shares: Tensor, beyond: Beyond
    ) -> Tensor:
        """Return the weighted mean over a batch, whose weights `shares` add up to 1."""
        with self.dropout.with_masks(beyond.get("masks", ())):
            outputs = self._outputs({**weights, **buffers}, rows)
        features = self.seen.latest() if self.compared is not None else None  # before another model is called
        if answers.is_floating_point():
            costs = mean_loss(outputs, answers, reduction="none")
        else:
            logits = _adjusted(outputs, beyond)
            costs = mean_loss(logits, answers, reduction="none")
            if not self.row_loss.is_plain:
                costs = self._weighed(costs, logits, rows, answers, beyond)
        if features is not None:
            costs = costs + self._compared(features, rows, beyond["others"])
        return (costs * shares).sum()

    def _outputs_of_another(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Return the outputs of a model that is not trained, in evaluation mode."""
        modes = [(part, part.training) for part in self.module.modules()]
        self.module.eval()
        try:
            return self._outputs(tensors, rows)
        finally:
            for part, training in modes:
                part.training = training

    def _outputs(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Return the module's outputs on a batch with these tensors, float32."""
        with torch.autocast(rows.device.type, torch.bfloat16) if self.narrow else nullcontext():
            outputs: Tensor = functional_call(self.module, tensors, (rows,))
        return outputs.float()

    def _weighed(self, costs: Tensor, logits: Tensor, rows: Tensor, answers: Tensor, beyond: Beyond) -> Tensor:
        """Return the losses of rows by `row_loss`, see `fedscout.engine.models.layout`."""
        logs, loss = logits.log_softmax(dim=1), self.row_loss
        total = loss.cross_entropy * costs + loss.miss * (1 - logs.gather(1, answers[:, None])[:, 0].exp())
        if not loss.pseudo_label:
            return total
        teacher_outputs = self._outputs_of_another(beyond["teacher"], rows)
        pseudo_labels = _adjusted(teacher_outputs, beyond).softmax(dim=1).detach()
        return total - loss.pseudo_label * (pseudo_labels * logs).sum(dim=1)

    def _compared(self, own: Tensor, rows: Tensor, others: Sequence[Tensors]) -> Tensor:
        """Return the losses of rows by their representations."""
        assert self.compared is not None
        representations = []
        for tensors in others:
            self._outputs_of_another(tensors, rows)
            representations.append(self.seen.latest().detach().flatten(1)[None])
        costs: Tensor = self.compared.measure(own.flatten(1)[None], *representations)[0]
        return costs


def _adjusted(outputs: Tensor, beyond: Beyond) -> Tensor:
    """Return one client's outputs, adjusted if required."""
    parts = [None if (part := beyond.get(name)) is None else part[None] for name in ("scale", "shift")]
    return Adjusted(*parts)(outputs[None])[0]


ROW_STEP = 16
"""Of which a lane's rows are a multiple: few shapes, and whole vectors of whatever is computed of a row."""


def lane_rows(num_rows: int, training: LocalTraining) -> int:
    """Return the padded batch size of a client with this many rows; a last single row joins the previous batch."""
    joins = training.batch_size > 1 and num_rows > training.batch_size and num_rows % training.batch_size == 1
    largest = min(num_rows, training.batch_size) + joins
    return -(-largest // ROW_STEP) * ROW_STEP


@dataclass(frozen=True)
class LanePlan:
    """Clients in lanes, ordered by decreasing number of steps; the remaining lanes are empty.

    Attributes:
        order: The client of each lane that has one, as its position among the works.
        rows: Row numbers in the clients' source, arbitrary for padding; shape `(steps, lanes, rows)`.
        shares: Weight of each row in its batch's mean, 0 for padding, float32, same shape.
        sizes: Rows without padding, float64, shape `(steps, lanes)`.
    """

    order: IntArray
    rows: IntArray
    shares: FloatArray
    sizes: npt.NDArray[np.float64]

    @classmethod
    def of(cls, works: Sequence[RowsWork], training: LocalTraining, num_lanes: int, num_rows: int) -> Self:
        """Draw the batches of some clients.

        Args:
            works: At most as many as lanes, each with rows, whose batches have at most `num_rows`.
            training: Epochs and batches.
            num_lanes: Lanes side by side.
            num_rows: Rows of every batch with padding.
        """
        plans = [schedule(len(work.data), training.batch_size, training.local_epochs, num_rows) for work in works]
        order = np.argsort([-len(plan) for plan in plans], kind="stable")
        shape = len(plans[order[0]]), num_lanes
        rows, shares = np.zeros((*shape, num_rows), np.int64), np.zeros((*shape, num_rows), np.float32)
        sizes = np.zeros(shape)
        for lane, position in enumerate(order):
            work, plan = works[position], plans[position]
            orders = list(epoch_orders(len(work.data), training.local_epochs, work.generator))
            rows[: len(plan), lane] = work.data.rows[np.concatenate(orders)[plan.places]].reshape(-1, num_rows)
            shares[: len(plan), lane] = plan.shares.reshape(-1, num_rows)
            sizes[: len(plan), lane] = plan.sizes
        return cls(order, rows, shares, sizes)

    @property
    def num_steps(self) -> IntArray:
        """The number of steps of each work, in their order."""
        steps: IntArray = np.count_nonzero(self.sizes, axis=0)[np.argsort(self.order)]
        return steps

    @property
    def num_active(self) -> list[int]:
        """The number of leading lanes that have a batch, for each step."""
        return [int(number) for number in np.count_nonzero(self.sizes, axis=1)]


KEPT_SHARE = 0.5
"""Of the memory that is free when a host starts; what models and their outputs need is in the rest."""

PINNED_BYTES = 2**24
"""Most of one array that is sent by way of pinned memory, which stays with the process."""


class RowsOnDevice(NamedTuple):
    """Rows on the device.

    Attributes:
        features: Shape `(some rows, *feature_shape)`.
        places: Indices of the requested rows in `features`, in the shape of the request.
        answers: Their labels, or standardised targets as float32, in the same shape.
    """

    features: Tensor
    places: Tensor
    answers: Tensor


class ResidentRows:
    """LRU cache of source arrays on one device.

    Args:
        device: The device; on `cpu` nothing is copied.
        room_bytes: Limit for all copies together; None takes a share of a GPU's currently free memory.
        share: This process's share of the device.
    """

    def __init__(self, device: torch.device, room_bytes: int | None = None, share: float = 1.0) -> None:
        self._device = device
        if room_bytes is None and device.type == "cuda":
            room_bytes = int(KEPT_SHARE * share * torch.cuda.mem_get_info(device)[0])
        self._room_bytes = room_bytes
        self._kept: OrderedDict[int, tuple[npt.NDArray[Any], Tensor]] = OrderedDict()
        """Sources and their copies, by the source's identity."""

    def reach(self, data: Samples, rows: IntArray) -> RowsOnDevice:
        """Return rows of a client's source; `rows` holds row numbers, in any shape."""
        answers = self._sent(data.answers(rows))
        resident = self._resident(data.features)
        if resident is not None:
            return RowsOnDevice(resident, self._sent(rows), answers)
        needed, places = np.unique(rows, return_inverse=True)
        return RowsOnDevice(self._sent(data.features[needed]), self._sent(places.reshape(rows.shape)), answers)

    def _resident(self, source: npt.NDArray[Any]) -> Tensor | None:
        """Return the copy of a source; None if it exceeds the limit or the device's memory."""
        room = float("inf") if self._room_bytes is None else self._room_bytes
        if source.nbytes > room:
            return None
        copy = self._kept.pop(id(source), None)
        if copy is None:
            try:
                copy = source, self._sent(source)
            except torch.OutOfMemoryError:
                self._room_bytes = source.nbytes - 1
                return None
        self._kept[id(source)] = copy
        while sum(held.nbytes for held, _ in self._kept.values()) > room:
            self._kept.popitem(last=False)
        return copy[1]

    def _sent(self, array: npt.NDArray[Any]) -> Tensor:
        return sent(torch.from_numpy(array), self._device)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; a small one is sent to a GPU asynchronously from pinned memory."""
    if device.type != "cuda" or tensor.is_cuda or tensor.nbytes > PINNED_BYTES:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


ROWS_MIXED = (nn.modules.batchnorm._BatchNorm,)
"""Layers that look at a batch as a whole."""

LANE_BYTES = 2**30
"""Of all clients in parallel: weights, gradients, an optimiser's two moments, activations and their gradients."""

COPIES = 4
"""Copies of the weights in that."""

DEVICE_FAULT = re.compile("CUDA error|CUBLAS_STATUS|CUDNN_STATUS")
"""Errors of a device that can't continue, such as one whose memory others have taken; the module is not at fault."""

MOST_LANES, USUAL_ROWS = 64, 32


class ClientLanes:
    """Trains several clients at once.

    The number of lanes depends only on the model, the batch size and the federation, never on the currently free
    memory, so it is the same on every host. If memory runs out nevertheless, the number is halved; results are then
    those of that number of lanes, whose last bits may differ.

    Args:
        model: On the device.
        rows: On the same device.
        probe: Rows for the tests of lanes, the same on all hosts; at least one.
        most: Upper limit on lanes.

    Attributes:
        num_halved: How often memory ran out.
        serve: Whether lanes can train this model, with more than one lane.
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
        """Return the number of clients side by side, a power of two.

        Args:
            num_rows: Rows of a batch with padding.
            narrow: Whether layers compute in bfloat16.
        """
        shape = lanes, *_ = self._affordable_lanes(num_rows), num_rows, narrow
        if shape not in self._served:
            self._served[shape] = lanes == 1 or self._same_in_any_lane(*shape)
        return lanes if self._served[shape] else 1

    def _lanes_for(self, num_clients: int, num_rows: int, narrow: bool) -> int:
        """Return the number of lanes for this many clients: fewer than `num_lanes` if bit-identical."""
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

    def _affordable_lanes(self, num_rows: int) -> int:
        """Return the number of lanes that the memory limit allows."""
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
    ) -> Descent:
        """Run all local steps of some clients.

        Args:
            start: Initial parameters, shape `(size,)` or `(clients, size)`; this and all vectors may be in any memory.
            works: Each with rows, all of one source.
            how: Without a custom loss and without look-ahead.
            received: The model that gives pseudo-labels, shape `(size,)`.
            generators: The generator of each client's layers.
        """
        members_by_rows: dict[int, list[int]] = {}
        for position, work in enumerate(works):
            members_by_rows.setdefault(lane_rows(len(work.data), how.training), []).append(position)
        vectors = torch.empty(len(works), self._model.layout.size)
        num_steps, losses = torch.zeros(len(works), dtype=torch.int64), torch.zeros(len(works), dtype=torch.float64)
        for num_rows, members in members_by_rows.items():
            waiting = members
            while waiting:
                batch_states = [works[position].generator.bit_generator.state for position in waiting]
                layer_states = [generators[position].get_state() for position in waiting]
                num_lanes = self._affordable_lanes(num_rows)
                try:
                    num_lanes = self._lanes_for(len(waiting), num_rows, how.training.is_narrow)
                    clients = waiting[:num_lanes]
                    result = self._descend(num_lanes, num_rows, clients, start, works, how, received, generators)
                except torch.OutOfMemoryError:
                    self._halve(num_lanes, num_rows)
                    for position, state in zip(waiting, batch_states, strict=True):
                        works[position].generator.bit_generator.state = state
                    for position, layers_state in zip(waiting, layer_states, strict=True):
                        generators[position].set_state(layers_state)
                    continue
                vectors[clients], num_steps[clients], losses[clients] = result.vectors, result.num_steps, result.losses
                waiting = waiting[num_lanes:]
        return Descent(vectors, num_steps, losses)

    def _halve(self, num_lanes: int, num_rows: int) -> None:
        """Halve the number of lanes permanently.

        Raises:
            OutOfMemoryError: That of torch, if there is only one lane.
        """
        if num_lanes == 1:
            raise torch.OutOfMemoryError(f"the device lacks memory for one client with batches of {num_rows} rows")
        while self._affordable_lanes(num_rows) >= num_lanes:
            self.num_halved += 1

    def _descend(
        self,
        num_lanes: int,
        num_rows: int,
        clients: Sequence[int],
        start: Tensor,
        works: Sequence[RowsWork],
        how: Steps,
        received: Tensor,
        generators: Sequence[torch.Generator],
    ) -> Descent:
        """Run the steps of some clients, at most one a lane, given as positions among the works."""
        works = [works[position] for position in clients]
        plan = LanePlan.of(works, how.training, num_lanes, num_rows)
        in_lanes = partial(_filled, num_lanes, np.asarray(clients)[plan.order], device=self._model.device)
        weights, buffers = self._tensors(in_lanes(start))
        extra = [self._tensors(in_lanes(vectors))[0] for vectors in how.extra]
        lane_generators = [generators[clients[place]] for place in plan.order]
        shares, sizes = (self._on_device(torch.from_numpy(array)) for array in (plan.shares, plan.sizes))
        sums = torch.zeros_like(sizes[0])  # of each lane's losses over the rows that it saw, float64
        self._model.module.train()
        with Representation(self._model) as seen, self._dropout as dropout:
            loss = LaneLoss(self._model.module, how.weighed, how.compared, seen, dropout, how.training.is_narrow)
            on_device = self._rows.reach(works[0].data, plan.rows)
            beyond = self._beyond(how, received, in_lanes)
            optimizer = new_optimizer(how.training)
            gradient_of = _gradient_of(loss)
            for step, num_active in enumerate(plan.num_active):
                if dropout.draws:
                    masks = dropout.drawn(lane_generators[:num_active], plan.sizes[step].astype(int), num_rows)
                    beyond = {**beyond, "masks": [self._on_device(mask) for mask in masks]}
                gradient, means = gradient_of(weights, buffers, *_batch(on_device, step), shares[step], beyond)
                sums += means.double() * sizes[step]
                active_weights, active_gradients, *others = (
                    [part[:num_active].reshape(num_active, -1) for part in tensors.values()]
                    for tensors in (weights, gradient, *extra)
                )
                if how.correct is not None:
                    for parts in zip(active_weights, active_gradients, *others, strict=True):
                        how.correct(*parts)
                optimizer.step_all(active_weights, active_gradients)
        trained = torch.cat([part.flatten(1) for part in (*weights.values(), *buffers.values())], dim=1).cpu()
        lane_of = torch.from_numpy(np.argsort(plan.order))
        means = sums.cpu()[lane_of] / torch.from_numpy(plan.sizes.sum(axis=0))[lane_of]
        return Descent(trained[lane_of], torch.from_numpy(plan.num_steps), means)

    def _beyond(self, how: Steps, received: Tensor, in_lanes: Callable[[Tensor], Tensor]) -> Beyond:
        """Return the additional inputs of the losses."""
        beyond: dict[str, object] = {}
        if how.adjusted is not None:
            parts = {"scale": how.adjusted.scale, "shift": how.adjusted.shift}
            beyond |= {name: self._on_device(in_lanes(part)) for name, part in parts.items() if part is not None}
        if how.compared is not None:
            beyond["others"] = [self._all_tensors(in_lanes(vectors)) for vectors in how.compared.others]
        if how.weighed.pseudo_label:
            beyond["teacher"] = self._all_tensors(in_lanes(received))
        return beyond

    def _expressible(self) -> bool:
        """Return whether `torch.func` supports the module, and count its layers' outputs per row."""
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
        """Return whether the gradients of some clients are equal in the opposite order of lanes."""
        forward, backward = (self._tried_gradient(num_lanes, num_rows, turned, narrow) for turned in (False, True))
        return all(torch.equal(forward[name], backward[name].flip(0)) for name in forward)

    def _same_in_few_lanes(self, few: int, num_lanes: int, num_rows: int, narrow: bool) -> bool:
        """Return whether the gradients of the first clients are equal without the other lanes."""
        many = self._tried_gradient(num_lanes, num_rows, False, narrow)
        without_others = self._tried_gradient(num_lanes, num_rows, False, narrow, few)
        return all(torch.equal(many[name][:few], without_others[name]) for name in without_others)

    def _tried_gradient(
        self, num_lanes: int, num_rows: int, turned: bool, narrow: bool = False, few: int | None = None
    ) -> Tensors:
        """Return the gradients of test clients with batches of the probe's rows; of the first `few` if given."""
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

    def _on_device(self, tensor: Tensor) -> Tensor:
        return sent(tensor, self._model.device)

    def _tensors(self, vectors: Tensor) -> tuple[Tensors, Tensors]:
        """Return copies of vectors `(lanes, size)` on the device, as parameters and buffers by name."""
        layout = self._model.layout
        sizes = [slot.size for slot in layout.slots]
        parts = {
            slot.name: part.clone(memory_format=torch.contiguous_format).view(-1, *slot.shape)
            for slot, part in zip(layout.slots, self._on_device(vectors).split_with_sizes(sizes, dim=1), strict=True)
        }
        return {slot.name: parts.pop(slot.name) for slot in layout.parameters}, parts

    def _all_tensors(self, vectors: Tensor) -> Tensors:
        weights, buffers = self._tensors(vectors)
        return {**weights, **buffers}


def _gradient_of(loss: LaneLoss):  # type: ignore[no-untyped-def]  # torch.func's own type
    """Return the function that maps all lanes' tensors and batches to their gradients and losses."""
    return vmap(grad_and_value(loss), randomness="error")


def _filled(num_lanes: int, clients: IntArray, vectors: Tensor, device: torch.device) -> Tensor:
    """Return the clients' vectors lane by lane; empty lanes repeat others.

    Args:
        num_lanes: Lanes side by side.
        clients: Clients by their positions in a run, in the order of lanes.
        vectors: Shape `(size,)` or `(1, size)`, common to all, or one row for each of the run's clients.
        device: A common vector is sent there before it is expanded; other vectors stay where they are.
    """
    if vectors.numel() == vectors.shape[-1]:
        return sent(vectors.view(1, -1), device).expand(num_lanes, -1)
    return vectors[torch.from_numpy(np.resize(clients, num_lanes))]


def _batch(found: RowsOnDevice, step: int) -> tuple[Tensor, Tensor]:
    """Return the rows of a step, shape `(lanes, rows, *feature_shape)`, and their targets."""
    places = found.places[step]
    rows = found.features.index_select(0, places.flatten())
    return rows.view(*places.shape, *rows.shape[1:]), found.answers[step]
