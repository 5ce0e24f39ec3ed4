"""The manual: Sphinx with MyST and furo. ``make docs`` builds it; warnings are errors.

Sphinx reads the whole repository and not only ``docs/``, so that a page links to any file in it by its relative path.
Markdown pages become pages of the manual; any other file is copied into it.
"""

from __future__ import annotations

import inspect
import re
import sys
from enum import Enum
from os.path import normpath
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
html_title = f"securefda {release}"
html_logo = "_static/icon.svg"
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_js_files = ["manual.js"]
html_extra_path = ["_root"]
html_copy_source = False
html_show_copyright = False

_INDEXES = ("index", "README")
_MARKDOWN_LINK = re.compile(r"\]\(([^)#\s:]+\.md)")
_THREAT = re.compile(r"\b(T\d\d)\b")
_LINKS = (nodes.reference, pending_xref, download_reference)


def _index_above(page: PurePosixPath) -> PurePosixPath | None:
    """The index of the page's folder or of the nearest folder above; of an index, the one above it."""
    folders = page.parents if page.name not in _INDEXES else page.parents[1:]
    indexes = (folder / name for folder in folders for name in _INDEXES)
    return next((index for index in indexes if (ROOT / f"{index}.md").is_file()), None)


def _indexes_lead_on(_app: Sphinx, docname: str, source: list[str]) -> None:
    """The pages under an index are those that it links to, in that order: Sphinx needs no list of its own."""
    page = PurePosixPath(docname)
    if page.name not in _INDEXES or docname in (root_doc, "README"):
        return
    linked = (PurePosixPath(normpath(page.parent / link)) for link in _MARKDOWN_LINK.findall(source[0]))
    below = dict.fromkeys(f"/{one.with_suffix('')}" for one in linked if _index_above(one.with_suffix("")) == page)
    if below:
        source[0] += "\n".join(["\n```{toctree}", ":hidden:", "", *below, "```\n"])


def _sidebar_is_short(
    _app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: nodes.document | None
) -> None:
    """The side bar has sections and their pages; what is below a page, such as single results, is behind its index."""
    if "toctree" in context:
        whole = context["toctree"]
        context["toctree"] = lambda **options: whole(**options | {"maxdepth": 2})


def _threats_are_linked(_app: Sphinx, doctree: nodes.document) -> None:
    """The id of a threat in a text, such as T12, leads to its page."""
    for text in list(doctree.findall(nodes.Text)):
        if isinstance(text.parent, (nodes.paragraph, nodes.emphasis, nodes.strong)) and not _is_in_link(text):
            parts = [_threat(part) if _THREAT.fullmatch(part) else nodes.Text(part) for part in _THREAT.split(text)]
            text.parent.replace(text, parts)


def _is_in_link(node: nodes.Node | None) -> bool:
    while node is not None and not isinstance(node, _LINKS):
        node = node.parent
    return node is not None


def _threat(name: str) -> nodes.Node:
    page = f"/threat_model/threats/{name}"
    if not (ROOT / f"{page[1:]}.md").is_file():
        return nodes.Text(name)
    link = pending_xref("", refdomain="std", reftype="doc", reftarget=page, refexplicit=True)
    link += nodes.inline(name, name)
    return link


def _folders_are_named(app: Sphinx, doctree: nodes.document) -> None:
    """A link to a folder of the repository, which has no page, keeps its text and becomes no link."""
    here = PurePosixPath(app.env.docname).parent
    for link in list(doctree.findall(lambda node: isinstance(node, _LINKS))):
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
    app.connect("source-read", _indexes_lead_on)
    app.connect("doctree-read", _folders_are_named)
    app.connect("doctree-read", _threats_are_linked)
    app.connect("html-page-context", _sidebar_is_short, priority=400)  # before the theme's own
    app.connect("autodoc-process-signature", _types_as_written)
