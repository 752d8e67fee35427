"""The policy `kerf`: what would a placement cost later pods?

Costs are in milli-GPU, and each part of them is a file:
- `waste`: what of a GPU's rest will never be used, given the sizes that pods ask for
- `balance`: CPU and memory that the node's usable GPUs will lack
- `prices`: what CPU, memory and GPU are worth on each class of nodes, as demand and supply stand
- `groups`: whole groups of free GPUs, for pods of several

They learn from the pods that arrive (`mix`), from how much comes back (`turnover`) and from which pods are rejected
(`fairness`); `parameters` holds the few constants, the same for every cluster. `score` adds the parts up.
docs/decisions/0015 tells what was tried, and what each part is worth.
"""
