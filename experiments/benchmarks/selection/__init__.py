"""How good each selection policy is: policies by strategies by heterogeneities, ablations, and what a policy costs."""
