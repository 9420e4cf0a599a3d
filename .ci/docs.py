"""Build the documentation into `site/`, strictly, and see that neither the build nor a page needs the network.

A broken link or anchor, a page that the navigation lacks, or an address that a page would load from ends it with 1.
"""

import logging
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

ROOT = Path(__file__).resolve().parent.parent
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
"""What a browser loads by itself; a link that people click on may lead anywhere."""


class Loads(HTMLParser):
    """Collects the addresses that a page loads from."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag loads."""
        address = dict(attrs).get(LOADS.get(tag, ""))
        if address is not None and re.match(r"(https?:)?//", address):
            self.found.append(address)


def refuse_network(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook: no name is looked up, no connection made."""
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise RuntimeError(f"the build of the documentation asks the network: {arguments[-1]}")


def strangers(site: Path) -> list[str]:
    """What pages and styles of a site load from elsewhere, with the file that does."""
    found = []
    for page in sorted(site.rglob("*.html")):
        parser = Loads()
        parser.feed(page.read_text(encoding="utf-8"))
        found += [f"{page.relative_to(site)} loads {address}" for address in parser.found]
    for style in sorted(site.rglob("*.css")):
        text = style.read_text(encoding="utf-8")
        found += [f"{style.relative_to(site)} loads {a}" for a in re.findall(r"url\([\"']?((?:https?:)?//[^)]+)", text)]
    return found


def dead_links_of_the_readme() -> list[str]:
    """Links of README.md that lead to no file of the repository."""
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    return [f"README.md: there is no {link}" for link in links if not (ROOT / link).exists()]


def main() -> int:
    """Build and look."""
    os.chdir(ROOT)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    sys.addaudithook(refuse_network)
    config = load_config("mkdocs.yml", strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    try:
        build(config)
    except Abort as error:
        print(error, file=sys.stderr)
        return 1
    wrong = strangers(Path(config.site_dir)) + dead_links_of_the_readme()
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
