"""Who may say what on the bus (k8s/nats.conf): the log, its mark, and the words by which capacity comes back."""

from tests.mutants.mutant import Mutant

_CONF = "k8s/nats.conf"
_TESTS = "tests/contract/test_nats_permissions.py::"
_WATCHER = '          "kerf.v1.feed.*"\n          "kerf.v1.query.reach"\n          "kerf.v1.spans.watcher"\n'
_AGENT = '"kerf.v1.beat.*", "kerf.v1.release.*", '

MUTANTS = [
    Mutant(
        name="watcher-may-append",
        what="the watcher may write into the log",
        file=_CONF,
        old=_WATCHER,
        new=_WATCHER + '          "kerf.v1.log.>"\n',
        tests=(_TESTS + "test_only_placement_appends_to_the_log",),
    ),
    Mutant(
        name="watcher-may-write-the-mark",
        what="the watcher may write the log's mark",
        file=_CONF,
        old=_WATCHER,
        new=_WATCHER + '          "$KV.kerf_mark.>"\n',
        tests=(_TESTS + "test_only_placement_writes_the_logs_mark",),
    ),
    Mutant(
        name="watcher-may-delete-the-log",
        what="the watcher may delete the log",
        file=_CONF,
        old=_WATCHER,
        new=_WATCHER + '          "$JS.API.STREAM.DELETE.KERF_LOG"\n',
        tests=(_TESTS + "test_only_placement_deletes_the_log_and_no_other_stream",),
    ),
    Mutant(
        name="placement-may-delete-the-mark",
        what="placement may delete every stream, the mark's too",
        file=_CONF,
        old='"$JS.API.STREAM.DELETE.KERF_LOG"',
        new='"$JS.API.STREAM.DELETE.*"',
        tests=(_TESTS + "test_only_placement_deletes_the_log_and_no_other_stream",),
    ),
    Mutant(
        name="watcher-may-say-releases",
        what="the watcher may say that a node has released a grant",
        file=_CONF,
        old=_WATCHER,
        new=_WATCHER + '          "kerf.v1.release.*"\n',
        tests=(_TESTS + "test_only_agents_may_publish_releases_and_answers_to_placement",),
    ),
    Mutant(
        name="agents-may-answer-unasked",
        what="an agent may answer grants and syncs that nobody has sent",
        file=_CONF,
        old=_AGENT,
        new=_AGENT + '"kerf.v1.ack.>", ',
        tests=(_TESTS + "test_only_agents_may_publish_releases_and_answers_to_placement",),
    ),
]  # fmt: skip
