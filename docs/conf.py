"""Sphinx configuration of the site that ``make docs`` builds; ``OODLES_DOCS_QUICK=1`` leaves out the examples."""

import os
import sys
import tomllib
from pathlib import Path

import oodles

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS / "extensions"))

about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
repository = about["urls"]["Repository"]

project = about["name"]
version = release = oodles.__version__
author = "the oodles developers"
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "repository_links",
    "svg_math",
]
exclude_patterns = ["_build", "templates", "extensions", "layout", "images"]
# Pages that a measurement or the examples write may be missing. A page that no list has is still an error.
suppress_warnings = ["toc.not_readable"]

# Pages are Markdown that GitHub shows as well; formulas are between dollars there and here.
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
highlight_language = "none"  # blocks without a language are commands and what they print

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

html_theme = "pydata_sphinx_theme"
html_title = "oodles"
templates_path = ["layout"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_math_renderer = "svg"
html_sidebars = {"**": ["pages.html"]}
html_theme_options = {
    "logo": {"text": f"oodles {version}"},
    "github_url": repository,
    "navbar_center": [],
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "footer_start": [],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
copybutton_exclude = ".linenos, .gp, .go"

EXAMPLES = ROOT / "examples"
if EXAMPLES.is_dir():
    extensions.append("sphinx_gallery.gen_gallery")
    sphinx_gallery_conf = {
        "examples_dirs": [str(EXAMPLES)],
        "gallery_dirs": ["gallery"],
        "filename_pattern": r"/plot_",
        "plot_gallery": "OODLES_DOCS_QUICK" not in os.environ,
        "abort_on_example_error": True,
        "download_all_examples": False,
        "remove_config_comments": True,
        "write_computation_times": False,  # a page that would load scripts from elsewhere
        "show_memory": False,
        "within_subsection_order": "FileNameSortKey",
    }
else:
    exclude_patterns.append("gallery")
