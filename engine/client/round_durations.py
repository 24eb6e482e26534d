"""How long a round takes the clients of a call on the simulated clock: known before anybody trains.

Steps are those of one local training on a client's rows, with the settings that its algorithm or a selection policy
chooses for it; an algorithm that trains several times in a round pays for one. Where clients play, each epoch counts as
one step. Who fails or abstains takes as long as if it had answered, as its server can't know; who hangs is waited for
(`fedscout.engine.grid.watchdog`). Clients that only measure the received model pay for that (`Device.probe_seconds`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fedscout.engine.client.withheld_tensors import WithheldTensors
from fedscout.engine.contracts.client_selection import Observed
from fedscout.engine.contracts.train_request import TrainRequest
from fedscout.engine.data.availability import simulated_seconds
from fedscout.engine.data.client_data import Samples
from fedscout.engine.data.device import Device, RoundWork
from fedscout.engine.messages.host_calls import HostCall, Watched
from fedscout.engine.messages.travelling_values import BYTES_A_VALUE, client_bytes_down, client_bytes_up
from fedscout.engine.model.parameter_layout import ParameterLayout
from fedscout.engine.training.client_settings import own_training

NOBODY = Watched(observed=Observed())


class RoundDurations:
    """Durations of the clients of one call.

    Args:
        call: Whose clients train, and in which others measure.
        asked: By it.
        layout: Of the model.
        rows: Returns a client's training rows; raises where it has none for this call.
        plays: Whether clients play, and rows only count.
    """

    def __init__(
        self,
        call: HostCall,
        asked: TrainRequest,
        layout: ParameterLayout,
        rows: Callable[[int, HostCall], Samples],
        plays: bool,
    ) -> None:
        self._call = call
        self._asked = asked
        self._layout = layout
        self._rows = rows
        self._plays = plays
        self._watched = call.watched or NOBODY
        self._withheld = WithheldTensors(call, layout)

    def of(self, devices: Mapping[int, Device]) -> dict[int, float]:
        """Return the simulated seconds of each client of the call, 0 of one without a device."""
        free = Device()
        probes = {client: self._measured(client, devices.get(client, free)) for client in self._watched.measured}
        return probes | {client: self._trained(client, devices.get(client, free)) for client in self._call.clients}

    def _trained(self, client: int, device: Device) -> float:
        algorithm, companions = self._call.session.algorithm, self._call.companions.values()
        assigned = self._watched.assigned.get(client)
        work = RoundWork(
            self._num_steps(client, 1 if assigned is None else assigned.epochs),
            client_bytes_down(self._layout, algorithm, companions),
            client_bytes_up(self._layout, algorithm) - BYTES_A_VALUE * self._withheld.num_values_of(client),
        )
        return simulated_seconds(device, work, self._asked.seed, self._asked.server_round, client)

    def _measured(self, client: int, device: Device) -> float:
        bytes_down = client_bytes_down(self._layout, self._call.session.algorithm, ())
        work = RoundWork(self._num_steps(client, 1), bytes_down, bytes_up=0)
        return device.probe_seconds(work, self._asked.training.local_epochs)

    def _num_steps(self, client: int, times: int) -> int:
        if self._plays:
            return times * self._asked.training.local_epochs
        try:
            data = self._rows(client, self._call)
            training = own_training(self._asked, client, data, times, has_labels=True)
        except Exception:  # it will fail in training, and say why there
            return 0
        return int(training.num_steps(np.array([len(data)]))[0])
