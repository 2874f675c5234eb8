"""Settings of the documentation site; `make docs` builds it (CONTRIBUTING.md)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import cutback

project = "Cutback"
author = "the Cutback developers"
project_copyright = "the Cutback developers, Apache-2.0"
version = release = cutback.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "public_names",
    "repository_links",
]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".rst": "restructuredtext"}
exclude_patterns = ["extending/*", "notebooks/README.md", "_*"]
nitpicky = True

# Markdown
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # `make test-notebooks` executes them; the site shows what is committed

# Python
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Raises on a call", "Raises")]
add_module_names = False
autosummary_generate = False
toc_object_entries_show_parents = "hide"

# HTML
html_theme = "furo"
html_title = f"Cutback {version}"
html_static_path = ["_static"]
html_css_files = ["cutback.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
