"""Which container is about to start, and what of the node may be offered at all."""

from tests.mutants.mutant import Mutant

SLOTS = "services/node_agent/handover/slots.py"
RUNTIME_MONITOR = "services/node_agent/handover/runtime_monitor.py"
UNIT = "tests/unit/services/node_agent/handover"
AGREE = f"{UNIT}/test_slots.py::test_nothing_starts_if_the_records_disagree"

MUTANTS = [
    Mutant(
        name="slot-of-two-pods",
        what="a slot that two pods hold is resolved to the first one",
        file=SLOTS,
        old="    if len(now) > 1 or len(uids) > 1:\n",
        new="    if False:\n",
        tests=(AGREE,),
    ),
    Mutant(
        name="slot-of-two-uids",
        what="a slot that two UIDs hold by the kubelet's checkpoint is resolved to the first one",
        file=SLOTS,
        old="    if len(now) > 1 or len(uids) > 1:\n",
        new="    if len(now) > 1:\n",
        tests=(AGREE,),
    ),
    Mutant(
        name="slot-of-two-containers",
        what="a slot that two containers hold by PodResources is resolved to the first one",
        file=SLOTS,
        old="    if len(now) > 1 or len(uids) > 1:\n",
        new="    if len(uids) > 1:\n",
        tests=(AGREE,),
    ),
    Mutant(
        name="slot-of-another-container",
        what="a slot is resolved by the checkpoint alone, whichever container PodResources lists",
        file=SLOTS,
        old="next((h for h in before if h.container == holder.container), None)",
        new="next(iter(before), None)",
        tests=(AGREE,),
    ),
    Mutant(
        name="slot-without-a-device",
        what="a slot that was allocated without a Kerf device is served",
        file=SLOTS,
        old="    if not own.cdi_names:\n",
        new="    if False:\n",
        tests=(AGREE,),
    ),
    Mutant(
        name="replicas-of-other-plugins-not-seen",
        what="a GPU that another plugin shares by replicas is offered, too",
        file="services/node_agent/handover/other_plugins.py",
        old='if (uuid := device.partition("::")[0]) in of}',
        new="if (uuid := device) in of}",
        tests=(f"{UNIT}/test_other_plugins.py::test_devices_of_other_plugins_are_matched_by_uuid",),
    ),
    Mutant(
        name="offered-before-the-runtime-answers",
        what="a node offers slots although its runtime has not said yet whether it supports CDI",
        file=RUNTIME_MONITOR,
        old="            return self._silence\n",
        new='            return ""\n',
        tests=(f"{UNIT}/test_runtime_monitor.py::test_a_socket_on_which_nobody_answers_yet_is_an_obstacle",),
    ),
    Mutant(
        name="runtime-asked-once-a-minute-from-the-start",
        what="a runtime that did not answer is asked again after a minute",
        file=RUNTIME_MONITOR,
        old="            await self._sleep(REFRESH_S if answered else RETRY_S)\n",
        new="            await self._sleep(REFRESH_S)\n",
        tests=(
            f"{UNIT}/test_runtime_monitor.py"
            "::test_a_runtime_is_asked_every_second_until_it_answers_and_then_once_a_minute",
        ),
    ),
    Mutant(
        name="runtime-without-cdi",
        what="a runtime with CDI disabled counts as one that supports it",
        file="services/node_agent/handover/runtime.py",
        old='enabled = runtime.config.get("enableCDI", None if version == (1, 7) else True)',
        new="enabled = True",
        tests=(f"{UNIT}/test_runtime.py::test_cdi_support_is_judged_by_runtime_and_version",),
    ),
    Mutant(
        name="bound-to-an-unknown-node",
        what="a Binding goes to a node that the watcher does not know",
        file="services/watcher/executors/bindings.py",
        old='        if self._core.find("Node", order.node) is None:\n            # The server',
        new="        if False:\n            # The server",
        tests=("tests/unit/services/watcher/test_executors.py::test_an_unknown_node_is_never_bound_to",),
    ),
    Mutant(
        name="refused-before-the-pod-is-seen-bound",
        what="a start without a known grant is refused at the first answer of placement",
        file="services/node_agent/grant_wait.py",
        old="left_s = until - now()",
        new="left_s = 0.0",
        tests=(
            "tests/contract/test_claims_driver.py::test_a_claim_waits_until_placement_has_seen_its_pod_bound",
            "tests/contract/test_node_agent_real.py::test_a_start_waits_until_placement_has_seen_the_pod_bound",
        ),
    ),
    Mutant(
        name="asks-for-each-grant-of-others",
        what="a start asks placement again whenever the grant of another pod arrives",
        file="services/node_agent/grant_wait.py",
        old="                while (found := find()) is None:\n                    await self._came.wait()\n",
        new="                if (found := find()) is None:\n                    await self._came.wait()\n",
        tests=("tests/contract/test_node_agent_real.py::test_a_start_waits_until_placement_has_seen_the_pod_bound",),
    ),
    Mutant(
        name="a-grant-ends-no-wait",
        what="a start waits for its next query although the grant has arrived",
        file="services/node_agent/grant_wait.py",
        old="        self._came.set()\n",
        new="",
        tests=("tests/contract/test_node_agent_real.py::test_a_start_waits_until_placement_has_seen_the_pod_bound",),
    ),
    Mutant(
        name="two-agents-on-a-node",
        what="the next agent works beside the earlier one, and both write the checkpoint",
        file="services/node_agent/node_lock.py",
        old="        except BlockingIOError:\n            return False",
        new="        except BlockingIOError:\n            return True",
        tests=(
            "tests/unit/services/node_agent/test_node_lock.py::test_the_second_waits_until_the_first_gives_it_back",
        ),
    ),
    Mutant(
        name="pods-come-without-an-agent",
        what="an agent that the kubelet has left goes on to offer its GPUs, and the kubelet refuses the next pod for good",
        file="services/node_agent/kubelet_service.py",
        old="attach(self._device_plugin.watched)",
        new="attach(True)",
        tests=("tests/contract/test_device_plugin.py::test_pods_come_only_while_the_kubelet_knows_the_slots",),
    ),
    Mutant(
        name="claims-device-of-any-pod",
        what="the CDI devices of two pods with one claim have the same name, and runtimes refuse both",
        file="services/node_agent/handover/dra.py",
        old="blake2b(f'{pod}/{entry}'.encode(), digest_size=8)",
        new="blake2b(entry.encode(), digest_size=8)",
        tests=("tests/unit/services/node_agent/handover/test_dra_names.py",),
    ),
    Mutant(
        name="claim-given-before-its-release",
        what="a claim's next pod goes to the node where its pod before still has the devices",
        file="shared/scheduling/filters/claims_in_use.py",
        old="if part.claim in uids and held.uid != pod.uid:",
        new="if False:",
        tests=(
            "tests/unit/services/placement/scheduling/test_claims.py::"
            "test_a_node_that_has_yet_to_release_the_claim_of_another_pod_is_left_out",
        ),
    ),
    Mutant(
        name="claim-booked-twice",
        what="a claim that a pod names twice is booked twice",
        file="shared/model/claims.py",
        old="if path and (first := names_of.setdefault(path, claim.name)) != claim.name:",
        new="if False:",
        tests=("tests/unit/shared/model/test_claims.py::test_one_claim_under_two_names_is_refused",),
    ),
    Mutant(
        name="suspended-containers-start-unasked",
        what="a container starts on a GPU that others have while the kubelet has not registered the plugin",
        file="services/node_agent/grant_store.py",
        old="            if known.on_host or goes_to_host(known.grant.suspension) or goes_to_host(known.applied)\n",
        new="            if False\n",
        tests=("tests/unit/services/node_agent/test_suspensions.py",),
    ),
]
