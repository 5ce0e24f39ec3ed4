"""The manual: Sphinx with MyST and furo. ``make docs`` builds it; warnings are errors.

Sphinx reads the whole repository and not only ``docs/``, so that a page links to any file in it by its relative path.
Markdown pages become pages of the manual; any other file is copied into it.
"""

from __future__ import annotations

import inspect
import sys
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from securefda import __version__  # noqa: E402 - the manual is of this checkout, whatever is installed

project = "securefda"
author = "The securefda authors"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/**.md",
    "threat_model/**.md",
    "services/**.md",
    "benchmarks/**.md",
    "tests/vectors/*.md",
]
exclude_patterns = [".*", "docs/_*", "build", "dist", "runs", "kits", "securefda"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "py:obj"  # the code writes names in single backticks

maximum_signature_line_length = 80

html_math_renderer = "mathml"
html_theme = "furo"
html_title = "securefda"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_extra_path = ["_root"]
html_copy_source = False
html_show_copyright = False


def _folders_are_named(app: Sphinx, doctree: nodes.document) -> None:
    """A link to a folder of the repository, which has no page, keeps its text and becomes no link."""
    here = PurePosixPath(app.env.docname).parent
    for link in list(doctree.findall(lambda node: isinstance(node, (pending_xref, download_reference)))):
        target = str(link.get("reftarget", ""))
        if target and "://" not in target and (ROOT / here / target.partition("#")[0]).is_dir():
            link.replace_self(link.children)


def _types_as_written(
    _app: Sphinx, what: str, _name: str, found: object, _options: object, shown: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """A signature with its types as the code spells them: Sphinx would write out what stands behind ``ArrayLike``."""
    if not shown or not callable(found):
        return shown, returns
    if isinstance(found, type) and issubclass(found, Enum):
        return "", None
    signature = inspect.signature(found)
    parameters = list(signature.parameters.values())
    if what == "method" and parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    signature = signature.replace(parameters=parameters)
    return stringify_signature(signature, show_return_annotation=what != "class"), None


def _inline_math(translator: Any, node: nodes.math) -> None:
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block_math(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Sphinx calls this when it reads the configuration."""
    app.add_html_math_renderer("mathml", (_inline_math, None), (_block_math, None))  # the pages load nothing from afar
    app.connect("doctree-read", _folders_are_named)
    app.connect("autodoc-process-signature", _types_as_written)
