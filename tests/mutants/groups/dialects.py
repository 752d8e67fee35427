"""Foreign dialects: units, which pods are taken over, and pods that are never preempted."""

from tests.mutants.mutant import Mutant

_TESTS = "tests/unit/services/admission/"
_DIALECTS = "services/admission/dialects/"

MUTANTS = [
    Mutant(
        name="per-gpu-memory-is-taken-for-the-total",
        what="HAMi's and Volcano's memory of each GPU becomes the container's total",
        file=_DIALECTS + "vgpu.py",
        old='f"{ask.memory_mib * ask.count}Mi"',
        new='f"{ask.memory_mib}Mi"',
        tests=(_TESTS + "dialects/test_hami.py", _TESTS + "dialects/test_volcano.py"),
    ),
    Mutant(
        name="all-cores-are-a-share",
        what="a container with all of a GPU's cores shares the GPU",
        file=_DIALECTS + "vgpu.py",
        old="return self.cores == _ALL or ",
        new="return ",
        tests=(_TESTS + "dialects/test_hami.py",),
    ),
    Mutant(
        name="vcuda-blocks-are-mib",
        what="gpu-manager's blocks of 256 MiB count as one MiB each",
        file=_DIALECTS + "gpu_manager.py",
        old="_BLOCK_MIB = 256",
        new="_BLOCK_MIB = 1",
        tests=(_TESTS + "dialects/test_gpu_manager.py",),
    ),
    Mutant(
        name="koordinators-totals-may-be-uneven",
        what="Koordinator's totals that cannot be divided over the GPUs are admitted",
        file=_DIALECTS + "koordinator.py",
        old="        if percent % count or percent // count > _ALL:\n",
        new="        if percent // count > _ALL:\n",
        tests=(_TESTS + "dialects/test_koordinator.py",),
    ),
    Mutant(
        name="kais-annotations-are-anybodys",
        what="an annotation gpu-memory makes any pod one of KAI's",
        file=_DIALECTS + "kai.py",
        old="        if manifest.scheduler not in self.schedulers and not any(label in manifest.labels for label in QUEUES):\n"
        "            return False\n",
        new="",
        tests=(_TESTS + "dialects/test_kai.py",),
    ),
    Mutant(
        name="excluded-namespaces-are-taken-over",
        what="a scheduler is taken over in excluded namespaces, too",
        file="services/admission/core.py",
        old="return scheduler in policy.takeover_schedulers and request.namespace not in policy.excluded_namespaces",
        new="return scheduler in policy.takeover_schedulers",
        tests=(_TESTS + "test_core.py",),
    ),
    Mutant(
        name="never-preempted-pods-are-victims",
        what="a pod that is never preempted may be one of a plan's victims",
        file="shared/queues/preemption_policy.py",
        old="        fixed = next((victim for victim in victims if not victim.life.preemptible), None)\n",
        new="        fixed: PodState | None = None\n",
        tests=("tests/unit/shared/queues/test_preemption_policy.py",),
    ),
    Mutant(
        name="never-preempted-pods-borrow",
        what="a pod that is never preempted uses what other queues are guaranteed",
        file="shared/queues/usage.py",
        old="        if not state.life.preemptible:\n            return True\n",
        new="",
        tests=("tests/unit/services/placement/scheduling/fair/test_fair.py",),
    ),
    Mutant(
        name="a-percentage-of-memory-takes-none",
        what="a request in percent of a GPU's memory reserves no memory",
        file="shared/book/shares.py",
        old="        return total_mib * ask.memory_milli // WHOLE_GPU_MILLI, ask.compute_milli\n",
        new="        return 0, ask.compute_milli\n",
        tests=("tests/unit/services/placement/explain/test_counterfactuals.py",),
    ),
    Mutant(
        name="translated-before-it-is-counted",
        what="a pod of thousands of containers is translated before it is refused",
        file="services/admission/core.py",
        old="    check_containers(typed)  # before a translation that takes seconds for thousands of them\n",
        new="",
        tests=(
            "tests/unit/services/admission/dialects/test_kai.py::"
            "test_a_pod_of_thousands_of_containers_is_refused_before_it_is_translated",
        ),
    ),
    Mutant(
        name="defaults-before-exclusive",
        what="an installation's defaults make a part of a GPU that HAMi gives alone",
        file="services/admission/dialects/hami.py",
        old="    alone_with_all_memory=True,\n",
        new="",
        tests=(
            "tests/unit/services/admission/dialects/test_hami.py::"
            "test_defaults_make_no_part_of_a_gpu_that_was_asked_for_alone",
        ),
    ),
    Mutant(
        name="the-field-before-the-label",
        what="a KAI pod's field counts before its label",
        file="services/admission/dialects/kai.py",
        old="CLASSES.get(label or own_class or",
        new="CLASSES.get(own_class or label or",
        tests=("tests/unit/services/admission/dialects/test_kai.py::test_preemptible_as_in_kai",),
    ),
    Mutant(
        name="a-half-written-pair-ends-the-webhook",
        what="a certificate that cannot be read makes every replica of the webhook unready",
        file="services/admission/service.py",
        old='self._ctx.health.set("certificate", ok=not ended, detail=detail)',
        new='self._ctx.health.set("certificate", ok=not ended and not unreadable, detail=detail)',
        tests=(
            "tests/unit/services/admission/test_service.py::"
            "test_a_pair_that_cannot_be_used_leaves_the_webhook_ready_while_the_old_one_is_valid",
        ),
    ),
]
