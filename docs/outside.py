"""A hook of MkDocs: pages made from files outside docs/, and links to such files."""

import ast
import re
from os.path import relpath
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
GAP = re.compile(r"(?<=[\d–]) (?=[±/%])|(?<=[\d–] [±/]) (?=[\d–])")
"""A space inside a number of a table, where no line should break."""
LINK = re.compile(r"\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages of `PAGES`, and one with all examples."""
    texts = {target: (ROOT / source).read_text(encoding="utf-8") for source, target in PAGES.items()}
    for target, text in (texts | {"examples.md": examples()}).items():
        files.append(File.generated(config, target, content=linked(text, ROOT, config.repo_url)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page for Python-Markdown, which unlike GitHub takes comments for text and leaves <details> as they are."""
    if page.file.abs_src_path:
        markdown = linked(markdown, Path(page.file.abs_src_path).parent, config.repo_url)
    markdown = markdown.replace("<details>", '<details markdown="1">').replace("```python no-run", "```python")
    markdown = re.sub(r"^\|.*$", lambda row: GAP.sub("\u00a0", row[0]), markdown, flags=re.MULTILINE)
    return re.sub(r"^<!--.*-->$", "", markdown, flags=re.MULTILINE)


def linked(text: str, folder: Path, repository: str | None) -> str:
    """The text of a file in `folder` with links that work on the site.

    What has no page there is linked in the repository; without a `repo_url`, only the link's text stays.
    """
    here = folder if folder.is_relative_to(DOCS) else DOCS

    def link(match: re.Match[str]) -> str:
        path = (folder / match[2]).resolve()
        anchor = match[3] or ""
        if not path.is_relative_to(DOCS):
            name = path.relative_to(ROOT).as_posix()
            if name in PAGES:
                path = DOCS / PAGES[name]
            elif path == ROOT / "examples" or path in EXAMPLES:
                path, anchor = DOCS / "examples.md", f"#{path.stem}" if path.suffix else ""
            else:
                return f"[{match[1]}]({repository.removesuffix('.git')}/blob/HEAD/{name})" if repository else match[1]
        return f"[{match[1]}]({relpath(path, here)}{anchor})"

    return LINK.sub(link, text)


def examples() -> str:
    """All examples on one page: what each does, its code, and its output."""
    parts = ["# Examples\n\nScripts in the folder `examples`. Each takes seconds; none needs a licence or token."]
    for path in EXAMPLES:
        code = path.read_text(encoding="utf-8")
        purpose = ast.get_docstring(ast.parse(code)) or ""
        body = code.split('"""', 2)[2].strip()
        printed = (path.parent / "output" / f"{path.stem}.txt").read_text(encoding="utf-8").rstrip()
        parts.append(f"## {path.name} {{#{path.stem}}}\n\n{purpose}\n\n```python\n{body}\n```")
        parts.append(f"Output:\n\n```text\n{printed}\n```")
    return "\n\n".join(parts)
