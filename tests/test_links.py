"""Every link in the pages leads somewhere: files exist, and so do the headings named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (".", "docs", "docs/results", "docs/results/*", "benchmarks", "tests/campaign")
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(f"{folder}/*.md"))
GENERATED = re.compile(r"^(api/generated|gallery)/")  # made when the documentation is built
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")
DIRECTIVE = re.compile(r"^```\{image\} (\S+)|src(?:set)?=\"([^\"]+)\"", re.MULTILINE)


def text_of(page: Path) -> str:
    """Without blocks of code, which have brackets of their own; directives stay."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^```(?!\{)\w*\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Labels, and headings as GitHub and MyST name them."""
    text = text_of(page)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[`*$\\]|\]\([^)]*\)|\[", "", heading).strip().lower() for heading in headings)
    slugs = {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading)) for heading in plain}
    return slugs | set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    text = text_of(page)
    found = [a or b for a, b in (*LINK.findall(text), *DIRECTIVE.findall(text))]
    bad = []
    for link in found:
        if re.match(r"\w+:", link) or GENERATED.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target)
        ):
            bad.append(link)
    return bad


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One heading\n[a](#one-heading) [b](#two) [c](page.md#one-heading) [d](no.md)\n"
        "[e](https://example.org) ![f](no.png)\n```python\nx[i](j)\n```\n"
    )
    assert broken(page) == ["#two", "no.md", "no.png"]
