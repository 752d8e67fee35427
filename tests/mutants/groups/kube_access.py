"""How the API server is reached: renewed client certificates, and connections for watches beside those for writes."""

from tests.mutants.mutant import Mutant

_ACCESS = "shared/kube/access.py"
_TESTS = "tests/unit/shared/kube/test_access.py::"

MUTANTS = [
    Mutant(
        name="kept-connection-of-an-old-certificate",
        what="a connection that was opened with a client certificate of before is used for ever",
        file="shared/kube/http1.py",
        old=" and connection.certificate == newest\n",
        new="\n",
        tests=(_TESTS + "test_certificates_of_a_plugin_are_used_and_renewed[transport_for]",),
    ),
    Mutant(
        name="proxied-connection-of-an-old-certificate",
        what="the same with a proxy in between",
        file="shared/kube/aiohttp_transport.py",
        old="        if self._made is not None and newest != self._certificate:\n",
        new="        if False:\n",
        tests=(_TESTS + "test_certificates_of_a_plugin_are_used_and_renewed[AiohttpTransport]",),
    ),
    Mutant(
        name="certificate-file-read-once",
        what="a client certificate that is replaced under its name is not noticed",
        file=_ACCESS,
        old='("exec", "auth-provider", "tokenFile", "client-certificate")',
        new='("exec", "auth-provider", "tokenFile")',
        tests=(_TESTS + "test_a_certificate_file_that_is_replaced_is_used",),
    ),
    Mutant(
        name="certificate-without-its-key",
        what="a certificate is taken whose key has not been replaced yet, and no connection opens any more",
        file=_ACCESS,
        old="                ssl.create_default_context().load_cert_chain(certificate, key)\n",
        new="",
        tests=(_TESTS + "test_a_certificate_file_that_is_replaced_is_used",),
    ),
    Mutant(
        name="watches-take-proxied-connections",
        what="with a proxy, watches leave no connection to the writes",
        file="shared/kube/aiohttp_transport.py",
        old="            answer = await self._session_of_streams().request(\n",
        new="            answer = await (await self._session()).request(\n",
        tests=("tests/cluster/test_transports.py::test_watches_take_no_connection_from_the_writes",),
    ),
]
