"""R1: one leader at a time writes into the log."""

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        name="append-without-fence",
        what="an append does not name the newest term that the leader knows",
        file="shared/bus/log_stream.py",
        old="_FENCE_SEQUENCE: str(fence_sequence), _FENCE_SUBJECT: fence_subject}",
        new="}",
        tests=("tests/unit/shared/bus/test_log.py",),
    ),
]
