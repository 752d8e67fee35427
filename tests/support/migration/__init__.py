"""A cluster of HAMi's that moves to Kerf: its stand-ins, an independent count of its GPUs, and the guide's commands.

Stand-ins are here because no HAMi can run without GPUs: its scheduler, webhook and device plugin do with objects what
HAMi's public code does. API server, controllers and kubectl are real, and so is all of Kerf but the GPUs.
"""
