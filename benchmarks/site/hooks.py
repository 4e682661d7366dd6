"""What MkDocs calls (`hooks` of mkdocs.yml): it adds the pages that are made, and reads the others as `pages.py` has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from benchmarks.site import pages as made

_made = made.pages()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists pages that mkdocs.yml does not: those that are made, and files of `docs/`, as guides."""
    listed = str(config.nav)
    for section in config.nav or []:
        (title, entries), *_ = section.items()
        if title == "Reference":
            entries += [p for p in _made if p.startswith("reference/")]
        elif title == "Benchmarks":
            entries += [p for p in _made if p.startswith("machines/")]
        elif title == "Guides":
            entries += [p.name for p in sorted(made.DOCS.glob("*.md")) if f"'{p.name}'" not in listed]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the made pages, and copies of other files that pages link to."""
    texts = [(f.content_string, made.DOCS) for f in files.documentation_pages()]
    for path, (text, _) in _made.items():
        files.append(File.generated(config, path, content=text))
    for text, folder in (*texts, *_made.values()):
        for path in made.links_of(text, folder):
            if files.get_file_from_path(path) is None:
                source = made.ROOT / Path(path).relative_to(made.FILES)
                files.append(File.generated(config, path, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """The page with links and fences as MkDocs reads them."""
    path = page.file.src_uri
    folder = _made[path][1] if path in _made else made.DOCS
    # links of pages in folders are written for their place already
    return markdown if "/" in path else made.rewritten(markdown, folder)


def on_post_build(config: MkDocsConfig) -> None:
    """Adds the index of the search as a script: pages that are opened from a folder cannot read the JSON file."""
    index = Path(config.site_dir, "search", "search_index.json")
    index.with_suffix(".js").write_text(f"var __index = {index.read_text(encoding='utf-8')}", encoding="utf-8")
