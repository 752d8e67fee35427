"""Builds the CDI spec of a slice: device nodes, driver files, environment. Pure, except for the writer."""
