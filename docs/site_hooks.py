"""Hooks of the site: the source is part of it, and where a page names a file of the package, the name is a link."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "rl_training"
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
NAMED = re.compile(rf"(?<![\[`/\w])`((?:{'|'.join(ROOMS)})/\w+\.py)`(?!\])")


def on_files(files: Files, *, config: Any) -> Files:
    """A page for each source file that a page names."""
    named = {name for file in files.documentation_pages() for name in NAMED.findall(file.content_string)}
    for name in sorted(named):
        path = PACKAGE / name
        if path.exists():
            text = f"---\nsearch: {{exclude: true}}\n---\n# {name}\n\n````python\n{path.read_text('utf-8')}````\n"
            files.append(File.generated(config, f"code/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Files, **_: Any) -> str:
    """Make links of the names, outside of blocks of code."""
    here = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        target = f"code/{found[1]}.md"
        if files.get_file_from_path(target) is None:
            return found[0]
        return f"[`{found[1]}`]({posixpath.relpath(target, here or '.')})"

    if page.file.src_uri.startswith("code/"):
        return markdown
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else NAMED.sub(link, part) for part in parts)
