"""The modes of NVIDIA's go-gpuallocator and device plugin, which Kerf's choice of GPUs is measured against."""
