"""Builds the container image of a Dockerfile without a container engine, on a machine with root.

    dockerfile  reads the file: stages of instructions. Pure.
    build       runs the instructions in overlay mounts, each result kept by the hash of what made it
    archive     writes the last stage as the archive that `ctr image import` and `docker load` read

A base image `debian:SUITE-slim` is made from Debian's packages by mmdebstrap; no other base is known.
"""
