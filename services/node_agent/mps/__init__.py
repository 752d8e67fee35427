"""NVIDIA's Multi-Process Service: a control daemon for each GPU that concurrent slices share."""
