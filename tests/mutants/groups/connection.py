"""The connection to NATS: it is made anew, and what keeps it from that ends the process."""

from tests.mutants.mutant import Mutant

_FILE = "shared/bus/transport.py"
_FAULTS = "tests/unit/shared/bus/test_nats_bus_faults.py::"
_FIRST = (_FAULTS + "test_fault_15_what_a_server_says_before_its_answer_is_not_the_answer",)

MUTANTS = [
    Mutant(
        name="ping-is-the-answer",
        what="a PING before the answer to CONNECT is taken for the answer",
        file=_FILE,
        old='            if line.startswith(b"PING"):\n',
        new='            if line.startswith(b"NEVER"):\n',
        tests=_FIRST,
    ),
    Mutant(
        name="info-is-the-answer",
        what="an INFO before the answer to CONNECT is taken for the answer",
        file=_FILE,
        old='elif not line.startswith(b"INFO"):',
        new="else:",
        tests=_FIRST,
    ),
    Mutant(
        name="lost-connections-end-in-good-order",
        what="a connection with TLS that does not end keeps the client from connecting again",
        file=_FILE,
        old="async with asyncio.timeout(CLOSE_S):",
        new="async with asyncio.timeout(CLOSE_S * 1000):",
        tests=(
            "tests/unit/shared/bus/test_nats_bus_tls.py::"
            "test_fault_14_a_connection_that_ends_in_silence_is_made_anew_at_once",
        ),
    ),
    Mutant(
        name="stopped-client-unnoticed",
        what="a client that has stopped connecting is not reported, and its process stays",
        file="shared/bus/connection.py",
        old="if not self.connected and self.nc.attempts == seen else 0",
        new="if not self.connected and self.nc.attempts < seen else 0",
        tests=(_FAULTS + "test_fault_9_a_client_that_stopped_connecting_is_reported",),
    ),
]
