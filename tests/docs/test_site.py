"""The site: what it is made of, that it is built without a network, and that its pages load without one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import mirage as mi
from benchmarks.site.pages import (
    DOCS,
    FILES,
    ROOT,
    exported,
    links_of,
    machine_pages,
    pages,
    reference_pages,
    rewritten,
    slug,
    stored,
    target_of,
)

STUB = (ROOT / "mirage" / "__init__.pyi").read_text(encoding="utf-8")
#: what a page would fetch from elsewhere; links that a reader follows are none of it
_FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(https?:)?//|<link\b(?![^>]*canonical)[^>]*\bhref=\"?(https?:)?//"
)


@pytest.mark.parametrize(
    ("link", "folder", "wanted"),
    [
        ("docs/cli.md#json", ROOT, "cli.md#json"),
        ("docs/figures/lora.svg", ROOT, "figures/lora.svg"),
        ("../README.md#more", DOCS, "overview.md#more"),
        ("CONTRIBUTING.md", ROOT, "contributing.md"),
        ("LICENSE", ROOT, f"{FILES}/LICENSE"),
        ("cli.md", DOCS, "cli.md"),
        ("#json", DOCS, None),
        ("https://example.org/README.md", ROOT, None),
        ("missing.md", DOCS, None),
        ("../../etc/passwd", DOCS, None),
    ],
)
def test_links_lead_to_the_same_thing_in_the_site(link: str, folder: Path, wanted: str | None) -> None:
    assert target_of(link, folder) == wanted


def test_pages_are_read_as_code_hosts_read_them() -> None:
    page = "See [it](docs/cli.md).\n\n```sh run\n[not](docs/cli.md)\n```\n\n![a](docs/figures/lora.svg)\n"
    assert rewritten(page, ROOT) == "See [it](cli.md).\n\n```sh\n[not](docs/cli.md)\n```\n\n![a](figures/lora.svg)\n"
    assert links_of("[a](LICENSE) [b](README.md)\n```\n[c](Makefile)\n```\n", ROOT) == {f"{FILES}/LICENSE"}


def test_every_exported_name_is_in_the_reference_once() -> None:
    shown = re.findall(r"^::: mirage\.(\S+)$", "\n".join(reference_pages(STUB).values()), re.MULTILINE)
    assert len(shown) == len(set(shown))
    for module, name in exported(STUB):
        assert f"{module}.{name}" in shown or module in shown, f"{name} of {module} is on no page"
    assert {name for _, name in exported(STUB)} == set(mi.__all__)


def test_a_new_name_of_a_new_module_gets_a_page() -> None:
    found = reference_pages(STUB + "\nfrom .somewhere.new import thing as thing\n")
    assert "::: mirage.somewhere.new.thing" in found["reference/more.md"]
    assert "reference/more.md" not in reference_pages("from .api import load as load\n")


def test_every_machine_has_a_page_with_all_its_rows() -> None:
    data = stored()
    found = machine_pages(data)
    for part in data.values():
        for machine, rows in part.items():
            lines = found[f"machines/{slug(machine)}.md"].splitlines()
            assert sum(line.startswith("| ") for line in lines) >= len(rows)
    made = machine_pages({"latency": {"A | B": [{"name": "x|y", "us": 1234.5, "ok": True, "of": {"a": 1}}]}})
    assert made["machines/a-b.md"].splitlines()[-3:] == [
        "| name | us | ok |",
        "| --- | ---: | ---: |",
        "| x\\|y | 1,234 | yes |",
    ]


def test_every_made_page_has_a_title() -> None:
    for path, (text, folder) in pages().items():
        assert text.startswith("# "), path
        assert folder in (ROOT, DOCS)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed; pip install -e '.[site]'")
    folder = tmp_path_factory.mktemp("site")
    # nothing answers there: whatever would fetch fails
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | nowhere, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_is_built_without_warnings_and_fetches_nothing(site: Path) -> None:
    found = {p.relative_to(site).with_suffix(".md").as_posix() for p in site.rglob("*.html")}
    assert {p.name for p in DOCS.glob("*.md")} | set(pages()) <= found
    for page in site.rglob("*.html"):
        assert not (m := _FETCHED.search(page.read_text(encoding="utf-8"))), f"{page.name} fetches {m}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


@pytest.mark.slow
def test_pages_load_in_a_browser_without_a_network_and_without_errors(site: Path, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium is installed")
    shown = ["index.html", "theory.html", "reference/calls.html"]
    shown += [p.removesuffix(".md") + ".html" for p in machine_pages(stored())]
    for page in shown:
        command = [
            chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND",
            "--enable-logging=stderr", "--virtual-time-budget=5000", f"--user-data-dir={tmp_path}", "--dump-dom",
            (site / page).as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        assert done.returncode == 0 and "</html>" in done.stdout, done.stderr
        errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        assert not errors, f"{page}: {errors}"
