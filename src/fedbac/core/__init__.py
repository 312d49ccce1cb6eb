"""Value types, arithmetic and protocols that everything else stands on; no method is known here.

Axes, as suffixes of array names: M edges, K clusters, N members (the edges of a clustering policy, the clients of a
selection policy), C clients in a request, V models, S splits, G groups of examples, B batch, F features,
D weights.
"""
