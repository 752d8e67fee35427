"""Two trainings take turns on one GPU, beside the driver's time slicing and MPS."""
