"""Each sharing strategy by itself, and the adaptive choice, on the same jobs of HPC and deep learning."""
