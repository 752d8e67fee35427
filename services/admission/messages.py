"""What admission is asked, by which policy it decides, and what it answers."""

from __future__ import annotations

import msgspec

from services.admission.dialects import Setting
from services.admission.dialects.base import Json
from services.admission.patch import Operation
from services.admission.profiles import DEBUG, TRAIN, Profile


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What an installation decides. Part of the service's configuration."""

    setting: Setting = Setting()
    excluded_namespaces: tuple[str, ...] = ("kube-system", "kerf-system")
    """Foreign dialects are not translated there. The canonical form is read everywhere."""
    dialects: tuple[str, ...] | None = None
    """The names of the dialects that are read; None: all."""
    takeover_schedulers: tuple[str, ...] = ()
    """Schedulers all of whose pods are Kerf's, those without GPUs too."""
    plain_nvidia_namespaces: tuple[str, ...] = ()
    """Where nvidia.com/gpu is Kerf's, beside the namespaces that the webhook's configuration selects by label."""
    profile: Profile = ""
    """The pod's namespace's, as the webhook's configuration selects it by label."""
    debug_namespaces: tuple[str, ...] = ()
    """Beside the namespaces with the label."""
    train_namespaces: tuple[str, ...] = ()
    debug_memory_percent: int = 25
    """Of each whole GPU that a pod of the profile `debug` names."""
    watcher_accounts: tuple[str, ...] = ("system:serviceaccount:kerf-system:kerf-watcher",)
    """The users that may write kerf.dev/grant."""
    quota_gpu_bytes: int = 80 << 30
    """Memory of a GPU, by which a slice's memory counts as a part of one under ResourceQuota."""
    quota_least_milli: int = 1
    """Thousandths of a GPU that a slice of each GPU counts at least under ResourceQuota."""

    def profile_of(self, namespace: str) -> Profile:
        """The profile of a pod of this namespace."""
        if self.profile:
            return self.profile
        return DEBUG if namespace in self.debug_namespaces else TRAIN if namespace in self.train_namespaces else ""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """An admission request as the API server sends it, its objects as JSON."""

    pod: Json
    namespace: str = "default"
    operation: str = "CREATE"
    old: Json | None = None
    user: str = ""
    subresource: str = ""
    traceparent: str = ""
    """This review's own span; written on GPU pods that carry none, so that a pod's trace begins here."""


class Allowed(msgspec.Struct, frozen=True):
    """`patches` is JSON Patch; empty: unchanged. `warnings` are shown to the user that created the pod."""

    patches: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    dialect: str = ""
    """The pod's dialect: "kerf", a foreign dialect's name, or empty if it requests no GPU."""


class Refused(msgspec.Struct, frozen=True):
    code: str
    """Stable, for programs."""
    sentence: str
    """For people: what is wrong and what to write instead."""
