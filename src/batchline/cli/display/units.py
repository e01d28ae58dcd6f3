"""Numbers as people read them."""

import math


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def latency(seconds: float) -> str:
    """350 ms, 1.2 s, 20 s, 2 min 05 s."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


def age(seconds: float) -> str:
    """The largest unit only: 12 s, 5 min, 3 h, 9 d."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(max(seconds, 0))} s"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """1 line, 2,000 lines."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def count(number: int) -> str:
    """1,234 below a hundred thousand, then 123 k, 1.2 M, 3.4 G."""
    if number < 100_000:
        return f"{number:,}"
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9)):
        if number < 1_000 * size or unit == "G":
            return f"{number / size:.3g} {unit}"
    raise AssertionError(number)


def size(number: int) -> str:
    """Bytes: 512 B, 1.2 MB, 35 GB."""
    if number < 1000:
        return f"{number} B"
    for unit, factor in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12)):
        if number < 999.5 * factor or unit == "TB":
            value = number / factor
            return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"
    raise AssertionError(number)


def rate(per_second: float) -> str:
    """628/s, 4.2/s, 0.05/s."""
    if per_second >= 10 or per_second == 0:
        return f"{per_second:,.0f}/s"
    return f"{per_second:.1f}/s" if per_second >= 1 else f"{per_second:.2g}/s"


def about(number: float) -> str:
    """Two digits: 1.7, 20, 150, 1,500. For a value that is itself an estimate."""
    digits = 1 - math.floor(math.log10(number)) if number > 0 else 0
    rounded = round(number, digits)
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


def percent(done: int, total: int) -> str:
    """Rounded down, so that 100 % means all."""
    if done >= total:
        return "100 %"
    return f"{math.floor(1000 * done / total) / 10:.1f} %"
