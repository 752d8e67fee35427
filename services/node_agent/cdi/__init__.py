"""What a container gets of its slice, as a CDI spec: device nodes, driver files, environment. Pure, but for the writer."""
