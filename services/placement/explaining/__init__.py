"""What would be: with other pods, other nodes, other times. Everything is tried on forks of the book before it is said."""
