"""What a federation is and how its clients differ, told by whoever builds it: no training, no Ray, no queries."""

from experiments.describe.description import Description, describe_federation
from experiments.describe.realised import Realised, realised

__all__ = ["Description", "Realised", "describe_federation", "realised"]
