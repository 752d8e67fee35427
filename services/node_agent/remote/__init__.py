"""GPUs over the network: servers for containers of other nodes, and the way of this node's containers to theirs."""
