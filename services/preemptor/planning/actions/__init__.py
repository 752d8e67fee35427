"""The actions that make capacity free, one module each, in order of severity.

| action | gives up | loses | needs |
|---|---|---|---|
| throttle | most of its compute | time | a slice whose strategy limits compute while it runs |
| pause | all of its compute | time | the same |
| shrink | memory that it has not allocated | it cannot grow | the same for memory; observed use below its grant |
| move | everything on this node | its run, not its turn | capacity on another node, a controller that replaces it |
| checkpoint | compute and memory, which moves to the host | time | host memory, a driver that can do it |
| evict | everything | its run and its turn | nothing |

What each strategy can do is data: `shared.model.suspension`. The preemptor's `Config` says which actions are enabled.
"""
