"""Fair share between queues, on the tree of `shared.queues`. Pure: which queue is next and what its quota forbids
(`fair`), and the sentences about it (`messages`)."""
