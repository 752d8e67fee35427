"""Capacity that is reserved for the head of the queue, so that later pods cannot keep it waiting for ever."""
