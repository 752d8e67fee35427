"""Which GPUs a pod accepts, in HAMi's annotations: lists with commas, as pods that run elsewhere have them.

HAMi looks for the type anywhere in the product name; Kerf for whole words of it, so that A10 is not an A100.
"""

from __future__ import annotations

from services.admission.dialects.base import Json
from shared.model import names

_MEANING = {
    "nvidia.com/use-gputype": names.ANNOTATION_GPU_MODEL,
    "nvidia.com/nouse-gputype": names.ANNOTATION_GPU_MODEL_NOT,
    "nvidia.com/use-gpuuuid": names.ANNOTATION_GPU_UUID,
    "nvidia.com/nouse-gpuuuid": names.ANNOTATION_GPU_UUID_NOT,
    "hami.io/gpu-use-uuid": names.ANNOTATION_GPU_UUID,
    "hami.io/gpu-no-use-uuid": names.ANNOTATION_GPU_UUID_NOT,
}


def selection(pod: Json) -> dict[str, str]:
    """Kerf's annotations for those of the pod. An empty list is no wish."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    found: dict[str, str] = {}
    for foreign, ours in _MEANING.items():
        # Models are written with dashes on nodes, as GPU feature discovery does.
        parts = [part.strip().replace(" ", "-") for part in str(annotations.get(foreign) or "").split(",")]
        if any(parts):
            found[ours] = "|".join(filter(None, parts))
    return found
