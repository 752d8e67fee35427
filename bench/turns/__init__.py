"""Many real programs take turns on few GPUs of the fake driver, suspended and resumed by a real agent's parts."""
