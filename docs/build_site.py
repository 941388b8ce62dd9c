"""Build the documentation as a site: `python docs/build_site.py [FOLDER]` writes FOLDER/site, by default build/site.

The pages are copied to FOLDER/docs first. There the name of a source file, such as `algorithms/ppo.py`, becomes a link
to a page with its code. Then Zensical builds the site; every warning is an error.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PACKAGE = ROOT / "src" / "rl_training"
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
NAMED = re.compile(rf"(?<![\[`/\w])`((?:{'|'.join(ROOMS)})/\w+\.py)`(?!\])")
BLOCK = re.compile(r"(^```.*?^```$)", re.M | re.S)


def linked(text: str, page: str) -> str:
    """The text of a page with the names of source files as links, except in blocks of code."""
    here = posixpath.dirname(page) or "."

    def link(found: re.Match[str]) -> str:
        known = (PACKAGE / found[1]).exists()
        return f"[`{found[1]}`]({posixpath.relpath(f'code/{found[1]}.md', here)})" if known else found[0]

    return "".join(part if part.startswith("```") else NAMED.sub(link, part) for part in BLOCK.split(text))


def code_page(name: str) -> str:
    source = (PACKAGE / name).read_text("utf-8")
    return f"---\nsearch: {{exclude: true}}\n---\n# {name}\n\n````python\n{source}````\n"


def stage(folder: Path) -> None:
    """Copy the pages to `folder`, with links to source files, and add the pages that these lead to."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS / "images", folder / "images")
    named = set()
    for page in DOCS.rglob("*.md"):
        name, text = page.relative_to(DOCS).as_posix(), page.read_text("utf-8")
        write(folder / name, linked(text, name))
        named |= {found for found in NAMED.findall(text) if (PACKAGE / found).exists()}
    for name in named:
        write(folder / "code" / f"{name}.md", code_page(name))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build").resolve()
    stage(folder / "docs")
    shutil.rmtree(folder / "site", ignore_errors=True)
    shutil.copy(ROOT / "zensical.toml", folder)
    command = [
        sys.executable,
        "-m",
        "zensical",
        "build",
        "--strict",
        "--clean",
        "--config-file",
        "zensical.toml",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        # Zensical ends with a traceback of its own code, which says nothing about the pages.
        print((done.stdout + done.stderr).partition("Traceback")[0], file=sys.stderr)
        return 1
    print(f"written: {folder / 'site' / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
