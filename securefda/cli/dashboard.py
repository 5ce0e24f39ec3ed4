"""``securefda dashboard``: a page in this machine's browser that shows a site's run while it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from securefda.cli.options import OutputFormat
from securefda.cli.output import Format, print_result, say
from securefda.errors import ConfigError


def dashboard(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A run folder, which need not exist yet; sites/SITE in one; or a kit."),
    ],
    *,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65_535, help="Port on 127.0.0.1; 0 takes a free one.")
    ] = 0,
    output: OutputFormat = Format.TXT,
) -> None:
    """Show a site's run in the browser of this machine.

    The pages are there until Ctrl-C, read-only, and only for those who have the URL that it prints. Of a target:
    rounds, accuracy, β, sources, phases, alarms. Of a source: what left it and to whom, ε against its limit, its policy
    in words.
    """
    try:
        from securefda.dashboard.page_server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "h11"):
            raise
        hint = "pip install 'securefda[dashboard]'"
        raise ConfigError("securefda dashboard", f"needs {error.name}, which is not installed", hint=hint) from None

    def tell(url: str) -> None:
        if not folder.exists():
            say(f"{folder} does not exist yet: the page shows a run as soon as one begins there")
        print_result(output, {"url": url, "folder": str(folder)}, url)

    serve(folder, port, tell)
