"""The node agent, one per GPU node: inventory, hand-over of slices, and release of grants."""

import os

# gRPC's core writes lines of its own to stderr, which are no JSON; what they say comes to us as exceptions too. It
# reads this once, when `grpc` is imported, which only modules of this package do.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# With it, a process that the agent starts is a copy of the agent until it runs its program, in which gRPC starts its
# threads again: they read what is not there, and the process ends with SIGSEGV before its program begins.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
