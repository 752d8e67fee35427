"""Fair share between queues, on the tree of `shared.queues`. Pure: whose turn it is and what keeps a pod back (`fair`),
and what people are told of it (`words`)."""
