"""`offpcc docs`: lists the pages of the documentation, which come with offpcc, or prints one."""

from offpcc.config.bindings import nearest
from offpcc.config.gin_files import CHECKOUT
from offpcc.utils.errors import UserError
from offpcc.utils.paths import PACKAGE, shown

DOCS = (CHECKOUT or PACKAGE) / "docs"


def run_docs(page: str | None) -> int:
    """Print the names and titles of all pages, or the Markdown of one page.

    Raises:
        UserError: there is no such page.
    """
    pages = {file.relative_to(DOCS).with_suffix("").as_posix(): file for file in sorted(DOCS.rglob("*.md"))}
    if page is None:
        width = max(map(len, pages))
        for name, file in pages.items():
            title = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            print(f"{name:{width}}  {title}")
        print(f"`offpcc docs PAGE` prints one; the files are in {DOCS}")
        return 0
    name = page.removesuffix(".md").removeprefix("docs/")
    if name not in pages:
        hint = nearest(name, pages) or "`offpcc docs` lists all"
        raise UserError(f"the documentation has no page {shown(page)}; {hint}")
    print(pages[name].read_text(encoding="utf-8"), end="")
    return 0
