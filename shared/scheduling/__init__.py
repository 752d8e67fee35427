"""What decides where a pod can go, for placement and the preemptor: transactions on the book. Pure."""
