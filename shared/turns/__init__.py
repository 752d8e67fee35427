"""Turns: jobs that agree to it share GPUs over time. The one with the least attained GPU time runs; another waits,
suspended, with its memory on the GPU or on the host."""
