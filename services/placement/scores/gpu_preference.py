from __future__ import annotations

from math import isfinite, log10

from services.placement.scores.base import NodeScore, Rate
from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.model import names
from shared.model.gpu_models import known_model

_TFLOPS_A_UNIT_OF_COST = 400
"""Without a cost label a GPU's cost follows from its performance: an H100 2.5, an A100 0.8, a T4 0.16."""
_LEAST, _DECADES = 0.01, 6
"""Values from 0.01 to 10,000 are distinguished, each factor of ten by the same number of points."""


class GpuPreference(NodeScore):
    """kerf.dev/gpu-prefer: the cheapest of the nodes that fit, or the fastest.

    An operator's labels on the node (kerf.dev/gpu-cost, kerf.dev/gpu-speed: any unit, the same on all nodes) take
    precedence over public figures of the model. An unknown model counts as neither fast nor cheap.
    """

    name = "gpu-preference"
    weight = 100
    reads = ("request",)
    reads_node = ()

    def prepare(self, pod: PodState, book: Book) -> Rate | None:
        if pod.request is None or not pod.request.prefer:
            return None
        by_speed = pod.request.prefer == "speed"

        def rate(node: NodeState) -> int:
            figure = speed_of(node) if by_speed else cost_of(node)
            if figure is None:
                return 0
            points = int(1000 * max(0.0, min(1.0, log10(max(figure, _LEAST) / _LEAST) / _DECADES)))
            return points if by_speed else 1000 - points

        return rate


def speed_of(node: NodeState) -> float | None:
    """Of one of the node's GPUs: the operator's figure, else dense FP16 TFLOPS. None where neither is known."""
    labelled = _labelled(node, names.LABEL_GPU_SPEED)
    if labelled is not None:
        return labelled
    known = [model.fp16_tflops for gpu in node.gpus if (model := known_model(gpu.model)) is not None]
    return float(min(known)) if known else None


def cost_of(node: NodeState) -> float | None:
    """Of one of the node's GPUs: the operator's figure, else in proportion to what is publicly known of its speed."""
    labelled = _labelled(node, names.LABEL_GPU_COST)
    if labelled is not None:
        return labelled
    known = [model.fp16_tflops for gpu in node.gpus if (model := known_model(gpu.model)) is not None]
    return max(known) / _TFLOPS_A_UNIT_OF_COST if known else None


def _labelled(node: NodeState, label: str) -> float | None:
    """A label that is no positive number counts as none: one bad node must not stop a decision."""
    text = node.object.metadata.labels.get(label) if node.object is not None else None
    if text is None:
        return None
    try:
        figure = float(text)
    except ValueError:
        return None
    return figure if isfinite(figure) and figure > 0 else None
