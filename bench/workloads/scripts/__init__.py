"""PyTorch programs of the workloads' names. Each prints one JSON line. They have not been run on a GPU yet."""
