"""Which pods to preempt, by what action: the cheapest set of victims that lets a pod or a gang fit. Pure."""
