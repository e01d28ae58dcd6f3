"""Composers, and how to find the one that a page means."""

import difflib
import unicodedata

COMPOSERS = (
    "Tyagaraja",
    "Muthuswami Dikshitar",
    "Syama Sastri",
    "Purandara Dasa",
    "Annamacharya",
    "Swathi Thirunal",
    "Papanasam Sivan",
    "Oothukkadu Venkata Kavi",
)


def spellings(composer: str) -> tuple[str, ...]:
    """As pages write it."""
    return (
        composer,
        composer.upper(),
        composer.replace("th", "t"),
        f"Saint {composer}",
        composer.replace("a", "ā", 1),
    )


def resolved(name: str) -> str | None:
    """The composer with this name, or with one that differs little."""
    plain = _plain(name)
    known = {_plain(composer): composer for composer in COMPOSERS}
    found = difflib.get_close_matches(plain, known, n=1, cutoff=0.8)
    return known[found[0]] if found else None


def _plain(name: str) -> str:
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return letters.lower().removeprefix("saint ").replace("th", "t")
