"""``securefda kit``: one site's startup kit."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from securefda.cli.options import ExpectedCa, Kit, OutputFormat, now
from securefda.cli.output import Format, print_result
from securefda.text import aligned, printable, quoted

app = typer.Typer(help="Package, unpack, inspect and protect a site's startup kit.")


@app.command("package")
def package(
    kit: Kit,
    out: Annotated[Path | None, typer.Option("--out", help="The package; default: KIT.tar, or KIT.sealed.")] = None,
    seal: Annotated[
        bool, typer.Option("--seal", help="Seal it by a passphrase, which you give to the site by another way.")
    ] = False,
    output: OutputFormat = Format.TXT,
) -> None:
    """Write a kit into one file. Private keys go along, unless the site made its own: seal it, or carry it."""
    from securefda.site.package import holds_keys, package_kit
    from securefda.site.sealed import obtain

    parent = kit.parent if kit.name not in ("", "..") else kit / ".."
    path = out or parent / f"{kit.resolve().name}.{'sealed' if seal else 'tar'}"
    digest = package_kit(kit, path, now(), obtain(str(path), confirm=True) if seal else None)
    sealed = "sealed: give its passphrase to the site by another way than the file"
    plain = "it holds the site's private keys in clear: send it encrypted, or carry it; --seal seals it"
    has_keys = holds_keys(kit)
    if not has_keys:
        join = f"securefda site join KIT {quoted(path.name)}"
        plain = f"it holds no private key: send it by any way; the site runs: {join}"
    text = f"{path}\nSHA-256 {digest}\n{sealed if seal else plain}"
    print_result(output, {"package": str(path), "sha256": digest, "sealed": seal, "holds_keys": has_keys}, text)


@app.command("unpack")
def unpack(
    package: Annotated[Path, typer.Argument(metavar="PACKAGE", help="What `securefda kit package` wrote.")],
    out: Annotated[Path | None, typer.Option("--out", help="Folder to make; default: as PACKAGE.")] = None,
    ca: ExpectedCa = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Check a package, and unpack it into a folder that only you can read. A sealed one asks for its passphrase."""
    from securefda.site.package import unpack_kit

    folder = out or package.parent / package.stem
    unpacked = unpack_kit(package, folder, now(), expected_ca=ca)
    unchecked = (
        "" if ca else f"\nnot checked: whether the CA is the right one; its fingerprint is {unpacked.ca_fingerprint}"
    )
    then = f"then delete {package}, and run: securefda preflight {quoted(folder)} --offline"
    data = {
        "kit": str(folder),
        "site": unpacked.site_id,
        "role": unpacked.role,
        "ca_fingerprint": unpacked.ca_fingerprint,
    }
    print_result(output, data, f"{folder}: the kit of {unpacked.role} {unpacked.site_id}{unchecked}\n{then}")


@app.command("protect")
def protect(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="A startup kit, or the authority's folder ca/.")],
    remove: Annotated[bool, typer.Option("--remove", help="Make the keys plain again.")] = False,
    output: OutputFormat = Format.TXT,
) -> None:
    """Seal the private keys of a kit by a passphrase, which every process from this kit then needs.

    It comes from the descriptor that the variable SECUREFDA_PASSPHRASE_FD numbers, from systemd's credential
    securefda-passphrase, or from the terminal.
    """
    from securefda.site.authority import private_key_files, protect_keys
    from securefda.site.sealed import obtain

    private_key_files(kit)  # before anybody types a passphrase for nothing
    files = protect_keys(kit, None if remove else obtain(str(kit), confirm=True))
    names = ", ".join(file.name for file in files)
    text = f"{kit}: {names} {'are plain: their mode alone protects them' if remove else 'are sealed by the passphrase'}"
    print_result(output, {"keys": [str(file) for file in files], "sealed": not remove}, text)


@app.command("inspect")
def inspect(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="A kit's folder or its package.")],
    ca: ExpectedCa = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Check a kit and say what it is; nothing secret is shown."""
    from securefda.site.package import inspect_kit

    summary = asdict(inspect_kit(kit, now(), expected_ca=ca))
    rows = [
        (key.replace("_", " "), printable(", ".join(value) if isinstance(value, tuple) else str(value)))
        for key, value in summary.items()
        if value
    ]
    print_result(output, summary, aligned(rows))
