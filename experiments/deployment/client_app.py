"""The Flower app of a real client: `fedscout.client_app`.

```python
app = client_app("federation.json")                    # rows: data=PATH in --node-config
app = client_app("federation.json", rows=read_rows)    # rows: what a function of the owner's returns
```
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedscout.engine.data.client_query import QueryTable
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.engine.nodes.client_node import REFUSED, ClientNode
from fedscout.engine.nodes.node_call import ACTION
from fedscout.engine.nodes.owner_policy import OwnerPolicy, read_policy
from fedscout.experiments.deployment.agreement import Agreement
from fedscout.experiments.deployment.own_rows import RowsOf, client_federation
from fedscout.experiments.deployment.travelling import document_of, wire_of

logger = logging.getLogger("fedscout")

QUERY = '"query"'


def client_app(
    agreement: str | Path, rows: RowsOf | None = None, policy: str | Path | OwnerPolicy | None = None
) -> ClientApp:
    """Return the app that a SuperNode runs for its owner's data.

    It answers a driver of this program (`RealFederation`) and the `train` and `evaluate` messages of any Flower
    strategy. Where its rows come from is told in `own_rows`.

    Args:
        agreement: The file that says how rows become numbers, and which model is trained.
        rows: The client's rows; None takes `data` or `partition-id` of the node's configuration.
        policy: What the owner allows, or its file; None takes the file that `policy` of the node's configuration names,
            and without one the defaults of `OwnerPolicy`.

    Raises:
        ConfigurationError: If agreement or policy can't be read.
    """
    agreed = Agreement.read(Path(agreement))
    given = policy if policy is None or isinstance(policy, OwnerPolicy) else read_policy(Path(policy))

    def federation_of(number: int, terms: str, context: Context) -> Federation:
        if terms not in ("", agreed.digest):
            raise DataError("the driver has another agreement than this client")
        return client_federation(agreed, number, context, rows)

    def answer(message: Message, context: Context) -> Message:
        named = context.node_config.get("policy")
        try:
            owner = given or (OwnerPolicy() if named is None else read_policy(Path(str(named))))
        except ConfigurationError as error:
            logger.error("%s", error)
            return Message(Error(REFUSED, "can't read its owner's policy; its own log says why"), reply_to=message)
        node = ClientNode(federation_of, _queries(message), owner, wire_of(message), agreed.session)
        return node.app()(message, context)

    app = ClientApp()
    for category in (app.train, app.evaluate, app.query):
        category()(answer)
        category(ACTION)(answer)
    return app


def _queries(message: Message) -> QueryTable:
    """Return the aggregates that are known, where a message may ask for one: a process answers one message."""
    if QUERY not in document_of(message):
        return {}
    from fedscout.detectors import CLIENT_QUERIES

    return CLIENT_QUERIES
