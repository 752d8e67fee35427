"""What autoscalers and Kueue see: the amounts that nodes advertise, the taint on nodes that only look as if they had
room, nominated nodes, and which node types would help (`capacity.wanted`). Decides nothing about pods.
"""
