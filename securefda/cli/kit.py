"""``securefda kit``: one site's startup kit."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from securefda.cli.options import Kit, OutputFormat, now
from securefda.cli.output import Format, print_result
from securefda.text import aligned

app = typer.Typer(help="Package and inspect a site's startup kit.")


@app.command("package")
def package(
    kit: Kit,
    out: Annotated[Path | None, typer.Option("--out", help="The package; default: KIT.tar.")] = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Write a kit into one tar file. It holds private keys: send it encrypted, or carry it."""
    from securefda.site.package import package_kit

    path = out or kit.with_name(f"{kit.resolve().name}.tar")
    digest = package_kit(kit, path, now())
    text = f"{path}\nSHA-256 {digest}\nit holds the site's private keys: send it encrypted, or carry it"
    print_result(output, {"package": str(path), "sha256": digest}, text)


@app.command("inspect")
def inspect(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="A kit's folder or its package.")],
    ca: Annotated[
        str | None, typer.Option("--ca", metavar="FINGERPRINT", help="The CA's fingerprint, learnt another way.")
    ] = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Check a kit and say what it is; nothing secret is shown."""
    from securefda.site.package import inspect_kit

    summary = asdict(inspect_kit(kit, now(), expected_ca=ca))
    rows = [
        (key.replace("_", " "), (", ".join(value) if isinstance(value, tuple) else str(value)))
        for key, value in summary.items()
        if value
    ]
    print_result(
        output,
        {
            key: list(value) if isinstance(value, tuple) else value if isinstance(value, int | str) else str(value)
            for key, value in summary.items()
        },
        aligned(rows),
    )
