"""What may be asked of a pod so that another gets its place, one file each, from gentle to hard.

| | gives | loses | needs |
|---|---|---|---|
| throttle | most of its compute | time | a slice whose strategy limits compute while it runs |
| pause | all of its compute | time | the same |
| shrink | memory that it has not allocated | it cannot grow | the same of memory, and to be seen using less |
| move | everything here | its run, not its turn | a place elsewhere, a controller that makes it anew |
| checkpoint | compute and memory, which goes to the host | time | room on the host, a driver that can |
| evict | everything | its run and its turn | nothing |

What each strategy can do is data: `shared.model.suspension`. Which of these an installation allows is its `Config`.
"""
