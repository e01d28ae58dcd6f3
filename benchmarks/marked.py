"""Generated parts of a page, between two comments. People write the rest of the page."""

import re


def renewed(page: str, name: str, content: str) -> str:
    """Replace the part of the page between the marks of this name."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    marked = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if len(marked.findall(page)) != 1:
        raise ValueError(f"the page must have one part between {begin} and {end}")
    return marked.sub(lambda _: f"{begin}\n{content.strip()}\n{end}", page)
