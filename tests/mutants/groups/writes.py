"""What the watcher writes in the cluster: for one version only, and touches by whatever way there is."""

from tests.mutants.mutant import Mutant

_WATCHER = "services/watcher/executors/patches.py"
_TESTS = "tests/unit/services/watcher/test_executors.py::"

MUTANTS = [
    Mutant(
        name="claim-at-any-version",
        what="a claim is written whatever its version",
        file="shared/kube/device_writes.py",
        old='            meta = {"uid": order.uid, "resourceVersion": version} | body.get("metadata", {})\n',
        new='            meta = {"uid": order.uid} | body.get("metadata", {})\n',
        tests=(_TESTS + "test_a_claim_is_allocated_at_the_version_that_was_decided_on_and_no_other",),
    ),
    Mutant(
        name="bound-without-its-claim",
        what="a pod is bound although its claim could not be allocated",
        file="services/watcher/executors/bindings.py",
        old=(
            '            if result.outcome != "done":\n'
            "                return result\n"
            '        return Result("done")\n'
        ),
        new="        return Result(\"done\")\n",
        tests=(_TESTS + "test_a_claim_is_allocated_at_the_version_that_was_decided_on_and_no_other",),
    ),
    Mutant(
        name="suspension-at-any-version",
        what="the annotation of a suspended pod is written whatever the pod's version",
        file=_WATCHER,
        old=(
            "            suspension_patch(order.suspension)\n"
            "            | ({names.ANNOTATION_GPU_TIME: order.gpu_time} if order.gpu_time else {})\n"
            "            | ({names.ANNOTATION_GRANT: order.grant} if order.grant else {}),\n"
            "            order.resource_version,\n"
        ),
        new=(
            "            suspension_patch(order.suspension)\n"
            "            | ({names.ANNOTATION_GPU_TIME: order.gpu_time} if order.gpu_time else {})\n"
            "            | ({names.ANNOTATION_GRANT: order.grant} if order.grant else {}),\n"
        ),
        tests=(_TESTS + "test_an_order_to_suspend_is_for_one_version_of_the_pod",),
    ),
    Mutant(
        name="annotations-at-any-version",
        what="a patch of a pod's annotations leaves out the version that it is for",
        file="shared/kube/pod_writes.py",
        old=(
            "    ) -> Result:\n"
            '        """With a resourceVersion: only on that version."""\n'
            '        metadata = {"uid": uid, **({"resourceVersion": resource_version} if resource_version else {})}\n'
        ),
        new=(
            "    ) -> Result:\n"
            '        """With a resourceVersion: only on that version."""\n'
            '        metadata = {"uid": uid}\n'
        ),
        tests=(_TESTS + "test_an_order_to_suspend_is_for_one_version_of_the_pod",),
    ),
    Mutant(
        name="deleted-at-any-version",
        what="a pod is deleted although it has changed since",
        file="shared/kube/pod_writes.py",
        old=(

'        body = {\n'
'            "apiVersion": "v1",\n'
'            "kind": "DeleteOptions",\n'
'            "preconditions": _preconditions(order.uid, order.resource_version),\n'
'        }\n'

        ),
        new='        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": _preconditions(order.uid, "")}\n',
        tests=(_TESTS + "test_a_pod_that_has_changed_since_is_not_deleted",),
    ),
    Mutant(
        name="touch-by-annotation-only",
        what="a pod that takes no annotation is not touched by its status",
        file=_WATCHER,
        old='            if result.outcome not in ("refused", "unknown"):\n                return result\n',
        new="            return result\n",
        tests=(_TESTS + "test_a_pod_that_takes_no_annotation_is_touched_by_its_status",),
    ),
    Mutant(
        name="touch-goes-on-after-any-failure",
        what="a touch of a pod that is gone, or that the server has no time for, is tried by the status too",
        file=_WATCHER,
        old='            if result.outcome not in ("refused", "unknown"):\n',
        new='            if result.outcome == "done":\n',
        tests=(_TESTS + "test_a_temporarily_refused_touch_is_not_tried_in_another_way",),
    ),
    Mutant(
        name="failing-webhook-is-no-refusal",
        what="a pod whose webhook does not answer is never excluded",
        file="shared/kube/outcomes.py",
        old=(
            'return result.outcome == "refused" or (result.outcome == "unknown" and "failed calling '
            'webhook" in result.message)'
        ),
        new='return result.outcome == "refused"',
        tests=(_TESTS + "test_a_touch_fails_for_certain_only_if_neither_way_can_succeed",),
    ),
    Mutant(
        name="trouble-is-a-refusal",
        what="a status that cannot be written just now counts as a refused touch, by which a pod is excluded",
        file=_WATCHER,
        old="        if not refused_for_certain(by_status):\n            return by_status\n",
        new='        if by_status.outcome == "done":\n            return by_status\n',
        tests=(_TESTS + "test_a_status_that_cannot_be_written_just_now_does_not_refuse_the_touch",),
    ),
    Mutant(
        name="refused-touch-is-done",
        what="a pod that can be touched in no way is told as touched",
        file=_WATCHER,
        old='        return Result(outcome, f"its annotations: {result.message}; its status: {by_status.message}")\n',
        new='        return Result("done")\n',
        tests=(_TESTS + "test_a_pod_that_cannot_be_touched_in_either_way_is_refused_with_both_reasons",),
    ),
]  # fmt: skip
