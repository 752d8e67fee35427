"""The node agent, one per GPU node: inventory, hand-over of slices, and release of grants."""
