"""Keys and certificates for tests, made by the `openssl` program in a folder of their own."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

_NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_HERE: Final = "DNS:localhost,IP:127.0.0.1"
_ELSEWHERE: Final = "DNS:broker.example,IP:192.0.2.1"


def why_missing() -> str | None:
    """What this machine lacks for making certificates; None when it lacks nothing."""
    return None if shutil.which("openssl") else "the program openssl is not installed"


def make_pki(folder: Path) -> Path:
    """Make `NAME.key` and `NAME.pem` in a folder, which is returned.

    `ca` signs `server` and `client`, which are for localhost; `elsewhere`, for other names; and
    `expired`. `stranger` signs nothing. `encrypted.key` is the client's with the password x, and
    `names` is no certificate.
    """
    run = _runner(folder)
    for name in ("ca", "stranger"):
        run(
            *["req", "-x509", *_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.pem"],
            *["-days", "2", "-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign"],
        )
    for name, names, days in (
        ("server", _HERE, "2"),
        ("client", _HERE, "2"),
        ("elsewhere", _ELSEWHERE, "2"),
        ("expired", _HERE, "-1"),
    ):
        (folder / "names").write_text(f"subjectAltName={names}")
        run(
            *["req", *_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr"],
            *["-subj", f"/CN={name}"],
        )
        run(
            *["x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"],
            *["-CAcreateserial", "-days", days, "-extfile", "names", "-out", f"{name}.pem"],
        )
    run("ec", "-in", "client.key", "-aes128", "-passout", "pass:x", "-out", "encrypted.key")
    return folder


def server_context(pki: Path, name: str = "server", *, asks: bool = False) -> ssl.SSLContext:
    """What a server needs to be `name`, and to ask for a certificate if it `asks` for one."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=pki / "ca.pem")
    context.load_cert_chain(pki / f"{name}.pem", pki / f"{name}.key")
    context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
    return context


def _runner(folder: Path) -> Callable[..., None]:
    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    return run
