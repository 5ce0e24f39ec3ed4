"""A federation whose sites made their own keys: each site's folder, and the authority's, apart from each other."""

from __future__ import annotations

import shutil
from pathlib import Path

from federation_builder import NOW

from securefda.disk import read_file
from securefda.protocol.roster import SignedRoster
from securefda.site.endpoints import Address, SiteSpec
from securefda.site.enrolment import Enrolment, init_federation, merge_signatures, read_requests
from securefda.site.home import REQUESTED, Joined, join, request_enrolment
from securefda.site.kit import REQUEST_FILE, SECRET_FILES
from securefda.site.package import package_kit

ADDRESS = Address("127.0.0.1", 8443)
SPECS = {
    "geneva": SiteSpec("geneva", "target", "Hospital of Geneva", ("localhost", "127.0.0.1")),
    "lyon": SiteSpec("lyon", "source", "Hospital of Lyon"),
    "basel": SiteSpec("basel", "source", "Hospital of Basel", ("basel.example.org",)),
}
ROLES = {site: spec.role for site, spec in SPECS.items()}


class HomeFederation:
    """Folders ``SITE/kit`` and ``authority`` below ``root``; only what is sent goes from one to another."""

    def __init__(self, root: Path):
        self.root = root
        self.fed = root / "authority" / "fed"
        self.ca = ""

    def kit(self, site: str) -> Path:
        return self.root / site / "kit"

    def ask(self) -> None:
        """Every site makes keys and sends its request."""
        (self.root / "authority" / "requests").mkdir(parents=True)
        for site, spec in SPECS.items():
            request_enrolment(self.kit(site), "heart-study", spec, ADDRESS if spec.role == "target" else None)
            self.send_request(site)

    def send_request(self, site: str, kit: Path | None = None) -> Path:
        sent = self.root / "authority" / "requests" / f"{site}.json"
        sent.unlink(missing_ok=True)
        return Path(shutil.copy(self.request_file(site, kit), sent))

    def request_file(self, site: str, kit: Path | None = None) -> Path:
        return (kit or self.kit(site)) / REQUESTED / REQUEST_FILE

    def found(self) -> Enrolment:
        """The authority signs what was asked."""
        made = init_federation(
            self.fed,
            "heart-study",
            read_requests(self.root / "authority" / "requests", ROLES),
            aggregator=ADDRESS,
            policy_text="min-others = 2\n",
            settings_text=lambda site_id: f'site-id = "{site_id}"\n',
            now=NOW,
        )
        self.ca = made.ca_fingerprint
        return made

    def package(self, site: str) -> Path:
        """The authority's package of a site, sent to it."""
        sent = self.root / site / f"{site}.tar"
        sent.parent.mkdir(exist_ok=True)
        sent.unlink(missing_ok=True)
        package_kit(self.fed / site, sent, NOW)
        return sent

    def join(self, site: str) -> Joined:
        return join(self.kit(site), self.package(site), NOW, expected_ca=self.ca)

    def join_and_send(self, site: str) -> Enrolment:
        """Join with an incomplete roster, and have the authority merge the signature."""
        signed = self.join(site).signed
        assert signed is not None
        return merge_signatures(self.fed, SignedRoster.from_bytes(read_file(signed).data))

    def complete(self, sites: tuple[str, ...] = tuple(SPECS)) -> None:
        """Every site signs, then joins with the roster that all have signed."""
        for site in sites:
            self.join_and_send(site)
        for site in sites:
            assert self.join(site).is_ready

    def secrets(self, site: str) -> list[bytes]:
        """The private keys of a site, wherever they lie in its kit."""
        return [file.read_bytes() for name in SECRET_FILES for file in self.kit(site).rglob(name)]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with its contents."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
