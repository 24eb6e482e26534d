"""Client selection: who trains in a round. One file a policy, and the table of them."""
