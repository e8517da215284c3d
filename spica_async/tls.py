"""Why two ends cannot agree on TLS, in words that say what to change."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# OpenSSL's X509_V_ERR_*; of the others its own words say enough.
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_OTHER_NAME: Final = frozenset({62, 64})
"""The host's name, its IP address."""

_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"}
)
"""What came was no TLS, by the reasons that OpenSSL gives."""
_NOT_OURS: Final = (
    "CERTIFICATE_REQUIRED",
    "HANDSHAKE_FAILURE",
    "UNKNOWN_CA",
    "BAD_CERTIFICATE",
    "UNSUPPORTED_CERTIFICATE",
    "CERTIFICATE_REVOKED",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_UNKNOWN",
    "ACCESS_DENIED",
)
"""What the other end says of our certificate, or of there being none."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """What a user changes about TLS, by name.

    Attributes:
        trust: names the certificates to trust.
        own: names a certificate of ours; none: there is no way to give one.
        without: what the user writes to do without TLS.
    """

    trust: str
    without: str
    own: str | None = None


HTTPS: Final = TlsOptions("the variable SSL_CERT_FILE", "http:// in the URL")
"""For https, where OpenSSL's own settings count."""


def tls_error(error: BaseException) -> ssl.SSLError | None:
    """The error of TLS that is behind another one, however often that was wrapped."""
    found = [cause for cause in _causes(error) if isinstance(cause, ssl.SSLError)]
    # Those of aiohttp, which storages use, are such errors, too, and say nothing of it themselves.
    return found[-1] if found else None


def tls_refusal(error: BaseException, options: TlsOptions) -> str | None:
    """One line on why there is no TLS; None where another attempt may have better luck."""
    cause = tls_error(error)
    if cause is None:
        return None
    reason = _reason(cause)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _untrusted(cause, options)
    if reason in _NO_TLS:
        return f"no TLS is spoken at this port; {options.without} does without"
    if "ALERT" in reason and reason.endswith(_NOT_OURS):
        how = f": {options.own}" if options.own else ""
        return f"it does not accept our certificate, or that we have none ({_said(cause)}){how}"
    return None


def speaks_tls(error: ssl.SSLError) -> bool:
    """Whether a handshake that was tried for no more than that has met TLS."""
    return isinstance(error, ssl.SSLCertVerificationError) or "ALERT" in _reason(error)


def explained(error: ssl.SSLError) -> str:
    """One line for a person, without OpenSSL's file and line."""
    return f"TLS: {_said(error)}"


def _untrusted(error: ssl.SSLCertVerificationError, options: TlsOptions) -> str:
    # As with the reason.
    code = getattr(error, "verify_code", None)
    said = str(getattr(error, "verify_message", error)).rstrip(".")
    if code in _OTHER_NAME:
        return (
            f"its certificate is for another name: {said}; use a name that is in it"
            f" ({options.trust} says whom to trust, and does not change that)"
        )
    if code in {_EXPIRED, _NOT_YET_VALID}:
        return (
            f"its certificate, or one of those that vouch for it, is not valid now: {said}; renew"
            f" it, or look at this host's clock ({options.trust} does not change that)"
        )
    return f"its certificate is not trusted: {said}; {options.trust} names those to trust"


def _said(error: ssl.SSLError) -> str:
    return (_reason(error) or str(error) or type(error).__name__).lower().replace("_", " ")


def _reason(error: ssl.SSLError) -> str:
    # One that Python code has raised has none.
    return getattr(error, "reason", None) or ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
