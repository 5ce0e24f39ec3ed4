"""The signature of who made an audit page, in the page's last line: a comment, which browsers leave out.

A site signs with the key that the roster has of it. Signed is every byte of the page before the signature's own hex
digits, so the site and the federation that the line names, too.
"""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.audit.keys import keys_of
from securefda.audit.verification import Outcome
from securefda.disk import read_file
from securefda.errors import ExitCode, SecureFdaError
from securefda.protocol.envelope import sign_bytes, signature_is_valid

MESSAGE: Final = "AuditReport"
"""What the signature is over, so that it is none over anything else that the key signs."""
MAX_PAGE_BYTES: Final = 64 * 1024 * 1024
_LAST_LINE: Final = re.compile(
    rb"\n<!-- signed by ([a-z0-9][a-z0-9-]{0,62}) of ([a-z0-9][a-z0-9-]{0,62}): ([0-9a-f]{128}) -->\n\Z"
)
_HINT: Final = "ask its maker for the file once more, as securefda audit report --sign has written it"


class NotSigned(SecureFdaError):
    """An audit page is not what a site of the roster signed."""

    exit_code = ExitCode.AUDIT


def signed_page(page: bytes, federation: str, site: str, key: Ed25519PrivateKey) -> bytes:
    """Return the page with the signature of ``site`` as its last line."""
    signed = page + f"\n<!-- signed by {site} of {federation}: ".encode("ascii")
    return signed + sign_bytes(key, MESSAGE, signed).hex().encode("ascii") + b" -->\n"


def verify_page(file: Path, roster: Path) -> Outcome:
    """Check who signed a page, with the keys of a trusted roster. It says nothing about the logs.

    Raises:
        ConfigError: a file cannot be read, or the roster is none.
        NotSigned: the page has no signature, or not that of the site which its last line names.
    """
    data = read_file(file, limit=MAX_PAGE_BYTES).data
    keys = keys_of(file, roster)
    line = _LAST_LINE.search(data[-300:])
    if line is None:
        raise NotSigned(f"{file} does not end with the signature of a site", hint=_HINT)
    site, federation = (name.decode("ascii") for name in line.groups()[:2])
    if federation != keys.federation or site not in keys.public:
        what = f"{file} names {site} of federation {federation} as its maker, which {roster} does not have"
        raise NotSigned(what, hint="name the roster under which that site signed")
    digits = bytes.fromhex(line[3].decode("ascii"))
    if not signature_is_valid(keys.public[site], MESSAGE, data[: -len(b"%b -->\n" % line[3])], digits):
        raise NotSigned(f"{file} is not as {site} signed it: it was changed, or {site} did not sign it", hint=_HINT)
    found = {"page": str(file), "signed_by": site, "federation": federation, "sha256": sha256(data).hexdigest()}
    text = (
        f"{site} of federation {federation} made and signed {file}, and not a byte was changed since\n"
        "This says who made the page. Whether it is right, the logs say: securefda audit reconcile"
    )
    return Outcome(found, text)
