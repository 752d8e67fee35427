"""The live page: what the cluster does now, for people. It reads; nothing can be changed through it."""
