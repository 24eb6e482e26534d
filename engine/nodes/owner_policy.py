"""What the owner of a client's data allows, whatever a server asks.

It is a TOML file on the client's machine, of which everything may be left out:

```
trains = true
scores = true
queries = ["label_counts", "feature_moments"]   # left out: all that the program knows; [] is none
min_release = 10
epsilon = 2.0                                   # of all queries that are ever answered, none without noise
folder = "/var/lib/fedscout"                    # what was answered, and what the client keeps between rounds
```

ε counts answers to queries. Models that are trained and scores that are given to models are no such answers and cost
nothing of it: `trains = false` and `scores = false` forbid them. Who forgets the folder forgets what was spent.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedscout.engine.data.release import SmallClients
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.fault_text import details, fault_of, shown
from fedscout.engine.nodes.node_call import Method

NO_TRAINING = "the owner of its data does not allow training"
NO_SCORING = "the owner of its data does not allow scoring"


class RefusedError(Exception):
    """The owner does not allow what was asked."""


class OwnerPolicy(BaseModel):
    """What a client does for others."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    trains: bool = Field(default=True, description="whether models are trained on its rows")
    scores: bool = Field(default=True, description="whether models are scored on its rows")
    queries: tuple[str, ...] | None = Field(
        default=None, strict=False, description="the aggregates that it gives; nothing means all"
    )
    min_release: int = Field(default=5, ge=1, description="fewest rows behind a number that leaves it")
    small_clients: SmallClients = Field(
        default="abstain", description="what it does with fewer rows than that to train or be scored on"
    )
    epsilon: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="of all its answers to queries, ever; nothing adds no noise",
    )
    delta: float = Field(default=1e-6, ge=0, lt=1, description="of each set of answers")
    folder: Path | None = Field(default=None, strict=False, description="where it keeps what it must not forget")

    @model_validator(mode="after")
    def _counted(self) -> OwnerPolicy:
        if self.epsilon is not None and self.folder is None:
            raise ValueError("must have a folder beside epsilon, as what was spent of it is counted there")
        return self

    def check(self, method: Method, query: str = "") -> None:
        """Return if the owner allows what a method of a host does.

        Raises:
            RefusedError: If not.
        """
        if method == "train" and not self.trains:
            raise RefusedError(NO_TRAINING)
        if method in ("evaluate", "measure") and not self.scores:
            raise RefusedError(NO_SCORING)
        if method == "query" and self.queries is not None and query not in self.queries:
            raise RefusedError(f"the owner of its data does not allow the query {shown(query)}")


def read_policy(path: Path) -> OwnerPolicy:
    """Read a policy file; paths in it start where it lies.

    Raises:
        ConfigurationError: If it can't be read, or says something else.
    """
    try:
        policy = OwnerPolicy.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise ConfigurationError(f"the owner's policy must be a file, got {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(Fault(f"the owner's policy {path}", f"be TOML: {error}")) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(Fault(f"the owner's policy {path}", "be TOML, and is no such text")) from error
    except ValidationError as error:
        keys = [(".".join(map(str, each["loc"])), each) for each in details(error)]
        faults = [fault_of(shown(key) if "." in key else key, each) for key, each in keys]
        raise ConfigurationError(f"the owner's policy {path}: {'; '.join(faults)}") from error
    if policy.folder is None:
        return policy
    return policy.model_copy(update={"folder": path.parent / policy.folder.expanduser()})
