"""How the site is built: `make docs`, warnings are errors, nothing is fetched from outside."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src")]

import generated  # noqa: E402  (docs/_ext: what the build writes by itself)

import sottovoce  # noqa: E402

project = "Sottovoce"
author = "The Sottovoce developers"
copyright = "The Sottovoce developers, Apache-2.0"
version = release = sottovoce.__version__

extensions = ["myst_nb", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
exclude_patterns = ["results", "_ext", "_build"]
root_doc = "index"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_show_tb = True
suppress_warnings = ["mystnb.unknown_mime_type"]

numpydoc_show_class_members = False
autosummary_generate = False  # the pages of the reference are written by `generated`
autodoc_typehints = "none"  # the docstrings say what is meant; the annotations repeat it
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 88
add_module_names = False


html_math_renderer = "plain"  # the few formulas of the reference, as written: nothing is fetched to set them

html_theme = "pydata_sphinx_theme"
html_title = f"Sottovoce {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": ["last-updated"],
}
html_context = {"default_mode": "auto"}


def setup(app):
    """Write the reference and the gallery before Sphinx reads the pages."""
    generated.teach_numpydoc()
    app.add_html_math_renderer("plain", (generated.formula, None), (generated.formula, None))
    app.connect("autodoc-process-docstring", generated.without_substitutions, priority=900)
    app.connect("autodoc-skip-member", generated.skipped)
    app.connect("builder-inited", lambda app: generated.write(Path(app.srcdir)))
