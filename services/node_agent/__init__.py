"""One per GPU node: inventory, hand-over of slices, and giving capacity back."""
