"""Hook of mkdocs: files of the repository that a page links become pages of the site, so that no link leads outside it.

`[x](../configs/demo.yaml)` in docs/ is a link to a file on a code host. In the site it leads to a page with the text of
that file; a link to a folder leads to a list of its files.
"""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_LINK = re.compile(r"\]\((?![a-z]+:)([^)\s#]+)(#[^)\s]*)?\)")
_NOTEBOOK_LINK = re.compile(r'href="([a-z/-]+)\.md')
_FOLDER = "files"
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "bash"}


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every linked file of the repository that is not in the documentation."""
    docs = Path(config["docs_dir"])
    for page in [file for file in files if file.src_uri.endswith(".md")]:
        for target in _outside(Path(page.abs_src_path), docs):
            address = _address(target, docs)
            if files.get_file_from_path(address) is None:
                files.append(File.generated(config, address, content=_shown(target, docs.parent)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let the links to such files lead to their pages."""
    docs, source = Path(config["docs_dir"]), page.file.abs_src_path
    if source is None:
        return markdown
    folder = Path(source).parent

    def in_site(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        if not target.exists():
            return link[0]  # mkdocs reports it.
        inside = _is_in_site(target, docs)
        address = str(target.relative_to(docs)) if inside else _address(target, docs)
        return f"]({os.path.relpath(docs / address, folder)}{link[2] or '' if inside else ''})"

    return _LINK.sub(in_site, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Let the links of a notebook lead to pages of the site."""
    return _NOTEBOOK_LINK.sub(r'href="\1.html', html) if page.file.src_uri.endswith(".ipynb") else html


def _outside(page: Path, docs: Path) -> list[Path]:
    targets = [(page.parent / link).resolve() for link, _ in _LINK.findall(page.read_text())]
    return [target for target in targets if target.exists() and not _is_in_site(target, docs)]


def _is_in_site(target: Path, docs: Path) -> bool:
    return target.is_relative_to(docs) and target.suffix not in _LANGUAGES


def _address(target: Path, docs: Path) -> str:
    return f"{_FOLDER}/{target.relative_to(docs.parent)}.md"


def _shown(target: Path, root: Path) -> str:
    """Return a page with the text of a file, or the names of the files in a folder."""
    title = f"---\nsearch: {{exclude: true}}\n---\n# {target.relative_to(root)}\n\n"
    if target.is_dir():
        return title + "\n".join(f"- `{path.name}`" for path in sorted(target.iterdir()) if path.suffix)
    return f"{title}````{_LANGUAGES.get(target.suffix, 'text')}\n{target.read_text()}\n````\n"
