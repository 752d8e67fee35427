"""Fair share between queues. Pure: amounts (`amounts`), the tree with shares and order (`tree`), what is used of it,
kept up by the book (`usage`), and what keeps a pod back (`Fair` in `fair`)."""
