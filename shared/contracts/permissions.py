"""What each user may say and hear on NATS, as text for the servers' configuration files in `k8s/`.

Every service has an inbox of its own, so none reads another's answers. Only placement writes the log. Where the
operator runs, each node's agent is a user of its own (`agent_of`).
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

from shared.contracts import subjects as s
from shared.contracts.events import EVENTS
from shared.contracts.queries import QUERIES
from shared.contracts.query import Query
from shared.contracts.registry import EVENTS as EVENT_CHANNELS


class Row(msgspec.Struct, frozen=True):
    """Subjects that belong together: a line of the configuration."""

    subjects: tuple[str, ...]
    comment: str = ""


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user of the NATS servers. Its password is the environment variable `KERF_NATS_<NAME>`."""

    name: str
    publish: tuple[Row, ...]
    subscribe: tuple[Row, ...]
    responds: bool = True
    """Whether it may answer requests, for a minute."""
    comment: str = ""

    @property
    def inbox_prefix(self) -> str:
        """Below which it receives its answers."""
        inboxes = (subject for row in self.subscribe for subject in row.subjects if subject.startswith("_INBOX"))
        return next(inboxes, "_INBOX.>").removesuffix(".>")


def row(*subjects: str, comment: str = "") -> Row:
    return Row(subjects, comment)


def _published_by(service: str) -> Row:
    """The events of a service: all of an entity where no other service publishes one, else each by its verb."""
    publisher = {channel.message: channel.publisher for channel in EVENT_CHANNELS}
    found: dict[str, None] = {}
    for event in EVENTS:
        if publisher[event] == service:
            alone = all(publisher[other] == service for other in EVENTS if other.ENTITY == event.ENTITY)
            found[f"{s.VERSION}.event.{event.ENTITY}.{'' if alone else event.VERB + '.'}>"] = None
    return row(*found)


def _asked_by(service: str) -> Row:
    return row(*(query.subject for query in QUERIES if service in query.publisher.split(", ")))


def askers(query: Query) -> tuple[str, ...]:
    """The users that may ask it."""
    return tuple(user.name for user in USERS if any(query.subject in row.subjects for row in user.publish))


def _answered_by(service: str) -> Row:
    return row(*(query.subject for query in QUERIES if query.receivers in (service, "every service")))


USERS = (
    User(
        name="placement",
        publish=(
            row(s.LOG_ALL),
            _published_by("placement"),
            row(s.CMD_BIND, s.CMD_PATCH, s.CMD_EVICT, f"{s.VERSION}.cmd.node.*.*"),
            row(s.QUERY_SNAPSHOT, f"{s.VERSION}.query.snapshot.*", s.QUERY_REACH),
            row(f"{s.VERSION}.spans.placement"),
            row(f"{s.VERSION}.alive.placement.*"),
            row("$KV.kerf_leader.>", "$KV.kerf_mark.>"),
            row(f"$KV.{s.KV_NODES}.>", comment="It removes the inventories of nodes that never come back."),
            row(
                "$JS.API.STREAM.INFO.*",
                "$JS.API.STREAM.CREATE.*",
                "$JS.API.STREAM.UPDATE.*",
                "$JS.API.STREAM.MSG.GET.*",
                "$JS.API.STREAM.DELETE.KERF_LOG",
            ),
            row("$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.DELETE.*.*", "$JS.FC.>"),
        ),
        subscribe=(
            row("_INBOX_placement.>"),
            row(f"{s.VERSION}.alive.placement.*"),
            row(s.FEED_ALL, s.HEARTBEAT_ALL, f"{s.VERSION}.ack.*.*.*", s.RELEASES_ALL, s.USAGE_ALL),
            row(
                f"{s.VERSION}.ack.*.*",
                s.SLICES_RELEASED,
                comment="What a placement before 0.2 hears, until it is replaced.",
            ),
            _answered_by("placement"),
            row(s.CMD_RESERVE, s.CMD_ABANDON),
        ),
    ),
    User(
        name="watcher",
        publish=(
            row(s.FEED_ALL),
            row(s.QUERY_REACH),
            row(f"{s.VERSION}.spans.watcher"),
        ),
        subscribe=(
            row("_INBOX_watcher.>"),
            row(s.CMD_BIND, s.CMD_PATCH, s.CMD_EVICT, s.CMD_RESIZE),
            row(s.QUERY_SNAPSHOT, f"{s.VERSION}.query.snapshot.*", s.QUERY_REACH),
            row(s.SLICES_IMPAIRED),
            _answered_by("watcher"),
        ),
    ),
    User(
        name="node_agent",
        comment="One user for all agents, where no operator runs: what names a node in a subject is its claim.\n"
        "With the operator each node has its own user (docs/decisions/0186); this one is for agents before 0.2.",
        publish=(
            _published_by("node_agent"),
            _asked_by("node_agent"),
            row(s.HEARTBEAT_ALL, s.RELEASES_ALL, s.USAGE_ALL, f"{s.VERSION}.spans.node_agent"),
            row(
                s.CMD_EVICT,
                comment="Where evict_unhealthy is set. Disruption budgets are honoured whichever account asks.",
            ),
            row("$KV.kerf_nodes.>"),
            row(
                "$JS.API.STREAM.INFO.KV_kerf_nodes",
                "$JS.API.STREAM.MSG.GET.KV_kerf_nodes",
                "$JS.API.STREAM.INFO.KERF_EVENTS",
            ),
        ),
        subscribe=(row("_INBOX_node_agent.>", f"{s.VERSION}.cmd.node.*.*"), _answered_by("node_agent")),
    ),
    User(
        name="preemptor",
        publish=(
            _published_by("preemptor"),
            _asked_by("preemptor"),
            row(s.CMD_RESERVE, s.CMD_ABANDON, s.CMD_EVICT, s.CMD_RESIZE),
            row(s.QUERY_SNAPSHOT, f"{s.VERSION}.query.snapshot.*", s.QUERY_REACH),
            row(f"{s.VERSION}.spans.preemptor"),
            row(f"{s.VERSION}.alive.preemptor.*"),
            row("$KV.kerf_leader.preemptor", "$KV.kerf_spared.*"),
            row(
                "$JS.API.STREAM.INFO.KERF_EVENTS",
                "$JS.API.STREAM.INFO.KV_kerf_nodes",
                "$JS.API.STREAM.INFO.KV_kerf_leader",
                "$JS.API.STREAM.INFO.KV_kerf_spared",
            ),
            row(
                "$JS.API.STREAM.MSG.GET.KV_kerf_leader",
                "$JS.API.STREAM.MSG.GET.KV_kerf_nodes",
                "$JS.API.STREAM.MSG.GET.KV_kerf_spared",
            ),
            row("$JS.API.CONSUMER.CREATE.KV_kerf_nodes.>", "$JS.API.CONSUMER.DELETE.KV_kerf_nodes.*"),
            row(
                "$JS.API.CONSUMER.CREATE.KV_kerf_leader.>",
                "$JS.API.CONSUMER.DELETE.KV_kerf_leader.*",
                "$JS.API.CONSUMER.CREATE.KV_kerf_spared.>",
                "$JS.API.CONSUMER.DELETE.KV_kerf_spared.*",
                "$JS.FC.>",
            ),
        ),
        subscribe=(
            row("_INBOX_preemptor.>"),
            row(f"{s.VERSION}.alive.preemptor.*"),
            row(s.FEED_ALL, s.REJECTED, s.GRANTS_ENDED, s.PREEMPTIONS),
            _answered_by("preemptor"),
            row(s.USAGE_ALL),
        ),
    ),
    User(
        name="metrics",
        publish=(
            _asked_by("metrics"),
            row(f"{s.VERSION}.spans.metrics"),
            row(
                "$JS.API.STREAM.INFO.KERF_EVENTS", "$JS.API.STREAM.INFO.KERF_LOG", "$JS.API.STREAM.MSG.GET.KERF_EVENTS"
            ),
            row("$JS.API.CONSUMER.CREATE.KERF_EVENTS.>", "$JS.API.CONSUMER.DELETE.KERF_EVENTS.*"),
            row(
                "$JS.API.STREAM.INFO.KV_kerf_nodes",
                "$JS.API.CONSUMER.CREATE.KV_kerf_nodes.>",
                "$JS.API.CONSUMER.DELETE.KV_kerf_nodes.*",
                "$JS.FC.>",
            ),
        ),
        subscribe=(
            row("_INBOX_metrics.>"),
            row(s.EVENTS_ALL, s.USAGE_ALL, s.SPANS_ALL),
            _answered_by("metrics"),
        ),
    ),
    User(
        name="reader",
        comment="For users: the CLI and programs that listen to events. It changes nothing.",
        publish=(_asked_by("cli"), row("$JS.API.STREAM.INFO.*", comment="`kerf doctor` reads the streams' settings.")),
        subscribe=(row("_INBOX.>", s.EVENTS_ALL, s.USAGE_ALL),),
        responds=False,
    ),
    User(
        name="operator",
        comment="For operators, who may cordon GPUs, drain them and resize slices: `kerf cordon`, `kerf drain`,\n"
        "`kerf resize`.",
        publish=(
            _asked_by("cli"),
            row("$JS.API.STREAM.INFO.*"),
            row(f"{s.VERSION}.cmd.node.*.cordon", s.CMD_EVICT, s.CMD_RESIZE),
        ),
        subscribe=(row("_INBOX.>", s.EVENTS_ALL, s.USAGE_ALL),),
        responds=False,
    ),
)


def agent_of(node: str) -> User:
    """The user of one node's agent: what concerns other nodes it can neither say nor hear."""
    token = s.token(node)
    events = [channel.message for channel in EVENT_CHANNELS if channel.publisher == "node_agent"]
    return User(
        name=f"node_agent.{token}",
        publish=(
            row(*(f"{s.VERSION}.event.{event.ENTITY}.{event.VERB}.node.{token}" for event in events)),
            row(
                *(f"{s.VERSION}.event.{event.ENTITY}.{event.VERB}.ns.*" for event in events if event.ENTITY == "slice"),
                comment="Slices are told in their pod's namespace. Only the watcher hears some, for Events.",
            ),
            _asked_by("node_agent"),
            row(s.heartbeat(node), s.release(node), s.usage(node), f"{s.VERSION}.spans.node_agent"),
            row(s.CMD_EVICT),
            row(s.identity(node), comment="For its node's certificate. Without an identity of its own it gets none."),
            row(f"$KV.{s.KV_NODES}.{token}"),
            row(
                f"$JS.API.STREAM.INFO.KV_{s.KV_NODES}",
                f"$JS.API.STREAM.MSG.GET.KV_{s.KV_NODES}",
                f"$JS.API.STREAM.INFO.{s.STREAM_EVENTS}",
            ),
        ),
        subscribe=(row(f"{agent_inbox(node)}.>", s.node_command(node, "*")), _answered_by("node_agent")),
    )


def agent_inbox(node: str, prefix: str = "_INBOX_node_agent") -> str:
    """Where one node's agent gets its answers."""
    return f"{prefix}.{s.token(node)}"


def tenant_of(namespace: str) -> User:
    """A user for the programs of one namespace's tenant: it hears that namespace's events and says nothing."""
    token = s.token(namespace)
    return User(
        name=f"tenant.{token}",
        publish=(),
        subscribe=(row(f"_INBOX_tenant.{token}.>", f"{s.VERSION}.event.*.*.ns.{token}"),),
        responds=False,
    )


def tool_of(namespace: str, account: str) -> User:
    """Returns the user of a program that receives all events, and reads those that the stream still has."""
    of, events = f"tool.{s.token(namespace)}.{s.token(account)}", s.STREAM_EVENTS
    return User(
        name=of,
        publish=(
            row(f"$JS.API.STREAM.INFO.{events}", f"$JS.API.CONSUMER.CREATE.{events}"),
            row(*(f"$JS.API.CONSUMER.{verb}.{events}.>" for verb in ("CREATE", "DELETE", "INFO", "MSG.NEXT"))),
            row(f"$JS.ACK.{events}.>", "$JS.FC.>"),
        ),
        subscribe=(row(f"_INBOX_{of}.>", s.EVENTS_ALL, s.USAGE_ALL),),
        responds=False,
    )


def granted(user: User) -> dict[str, Any]:
    """The user's permissions as a NATS user token has them (github.com/nats-io/jwt, Permissions)."""
    says = [subject for row in user.publish for subject in row.subjects]
    return {
        # To servers an empty list of what is allowed is no list; with `resp` it means answers alone.
        "pub": {"allow": says} if says or user.responds else {"deny": [">"]},
        "sub": {"allow": [subject for row in user.subscribe for subject in row.subjects]},
        **({"resp": {"max": -1, "ttl": 60 * 10**9}} if user.responds else {}),
    }


def callout_users_digest() -> str:
    """Of the permissions of the users that come by token: another one where a version of Kerf changes them."""
    users = (agent_of("node"), tenant_of("namespace"), tool_of("namespace", "account"))
    return hashlib.sha256(msgspec.json.encode([granted(user) for user in users])).hexdigest()[:16]


OPERATOR_SERVICE = "operator_service"
"""The user of services/operator: it identifies agents to the servers (auth_callout)."""
SYSTEM_USER = "system"
"""The user of NATS' system account, for services/operator: it lets servers reload their certificates."""
AUTH_REQUEST = "$SYS.REQ.USER.AUTH"
"""Where a server asks about a client that matches no user of its configuration."""

_OPERATOR_SERVICE = User(
    name=OPERATOR_SERVICE,
    comment="services/operator: it tells the servers which node an agent belongs to, and signs nodes' certificates.",
    publish=(),
    subscribe=(row(f"_INBOX_{OPERATOR_SERVICE}.>", AUTH_REQUEST, s.IDENTITY_ALL),),
)

_HEAD = """\
# Kerf's users on NATS and what each may say and hear. Generated from shared/contracts/permissions.py (`make schemas`).
# Used by the StatefulSet of NATS, as a ConfigMap of the same content, and by the tests, which include it into
# an embedded server. Passwords come from the environment.
#
# Every service has an inbox of its own, so none reads another's answers. Only placement writes the log.

max_payload: 1MB
# A client that is frozen takes its share of a queue group's requests until the server gives it up.
ping_interval: "5s"
ping_max: 2
"""

_SYSTEM = f"""\
accounts {{
  $SYS {{
    users: [
      # For services/operator: it asks the servers how they are, and lets them reload renewed certificates.
      {{ user: {SYSTEM_USER}, password: $KERF_NATS_{SYSTEM_USER.upper()} }}
    ]
  }}
}}
"""


def render(*more: User) -> str:
    """Returns the configuration of the users, and of `more`, in the format of NATS' configuration files."""
    users = "".join(_user(user) for user in (*USERS, *more))
    return f"{_HEAD}\nauthorization {{\n  users: [\n{users}  ]\n}}\n"


def render_shared() -> str:
    """The same for servers of the chart whose agents share a user: the operator reloads their certificates."""
    users = "".join(_user(user) for user in (*USERS, _OPERATOR_SERVICE))
    return f"{_HEAD}\n{_SYSTEM}\nauthorization {{\n  users: [\n{users}  ]\n}}\n"


def render_callout() -> str:
    """The same for servers that the operator serves: it identifies agents to them, and reloads their certificates."""
    users = (*USERS, _OPERATOR_SERVICE)
    listed = ", ".join((*(user.name for user in users), SYSTEM_USER))
    return f"""{_HEAD}
{_SYSTEM}
authorization {{
  # An agent's token is reviewed by the API server before its user is known.
  timeout: 5
  users: [
{"".join(_user(user) for user in users)}  ]
  auth_callout {{
    issuer: $KERF_NATS_CALLOUT_ISSUER
    account: "$G"
    # These have passwords, and never depend on the callout.
    auth_users: [ {listed} ]
  }}
}}
"""


def _user(user: User) -> str:
    lines = [
        "    {",
        *([f"      # {line}" for line in user.comment.splitlines()]),
        f"      user: {user.name}",
        f"      password: $KERF_NATS_{re.sub('[.-]', '_', user.name.upper())}",
        "      permissions: {",
        *(
            _list("publish", user.publish)
            if user.publish
            else []
            if user.responds
            else ['        publish: { deny: ">" }']
        ),
        *_list("subscribe", user.subscribe),
        *(['        allow_responses: { max: -1, expires: "1m" }'] if user.responds else []),
        "      }",
        "    }",
    ]
    return "".join(f"{line}\n" for line in lines)


def _list(name: str, rows: tuple[Row, ...]) -> list[str]:
    lines = []
    for row in rows:
        lines += [f"          # {row.comment}"] if row.comment else []
        lines.append("          " + ", ".join(f'"{subject}"' for subject in row.subjects))
    return [f"        {name}: [", *lines, "        ]"]
