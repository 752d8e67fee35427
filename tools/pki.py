"""A certificate authority for one throw-away control plane, by the openssl command alone.

Every certificate carries the extensions that a strict X.509 check wants (Python 3.13 refuses an authority without key
usage).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

SERVER_NAMES = (
    "IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
)

_AUTHORITY = """[req]
distinguished_name=dn
x509_extensions=v3
prompt=no
[dn]
CN=kerf-test-ca
[v3]
basicConstraints=critical,CA:true
keyUsage=critical,digitalSignature,keyCertSign,cRLSign
subjectKeyIdentifier=hash
"""


def openssl(directory: Path, *arguments: str) -> None:
    """Runs openssl in `directory`. Raises RuntimeError with what it wrote where it fails."""
    done = subprocess.run(["openssl", *arguments], cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"openssl {' '.join(arguments)} failed: {done.stderr.strip()}")


def create_authority(directory: Path) -> None:
    """ca.crt and ca.key, and sa.key and sa.pub with which service account tokens are signed."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "ca.cnf").write_text(_AUTHORITY)
    openssl(directory, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "ca.key")
    openssl(directory, "req", "-x509", "-new", "-key", "ca.key", "-config", "ca.cnf", "-days", "3650", "-out", "ca.crt")
    openssl(directory, "genrsa", "-out", "sa.key", "2048")
    openssl(directory, "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")


def issue(directory: Path, name: str, subject: str, *, names: str = "", server: bool = False) -> tuple[Path, Path]:
    """A certificate and its key, `name`.crt and `name`.key. `subject` is openssl's form: /O=group/CN=user.

    `names` is a subjectAltName line, for servers.
    """
    purpose = "serverAuth" if server else "clientAuth"
    lines = [
        "basicConstraints=critical,CA:false",
        "keyUsage=critical,digitalSignature",
        f"extendedKeyUsage={purpose}",
        "subjectKeyIdentifier=hash",
        "authorityKeyIdentifier=keyid",
    ]
    if names:
        lines.append(f"subjectAltName={names}")
    (directory / f"{name}.ext").write_text("\n".join(lines) + "\n")
    openssl(directory, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")
    openssl(directory, "req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
    openssl(
        directory,
        "x509",
        "-req",
        "-in",
        f"{name}.csr",
        "-CA",
        "ca.crt",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-days",
        "3650",
        "-extfile",
        f"{name}.ext",
        "-out",
        f"{name}.crt",
    )
    return directory / f"{name}.crt", directory / f"{name}.key"
