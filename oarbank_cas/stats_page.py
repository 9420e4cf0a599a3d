"""The figures about a store as one page for a browser: no script, nothing from elsewhere, plots as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from oarbank_cas.sizes import size_text

if TYPE_CHECKING:
    from oarbank_cas.stats import Count, Stats

_ROW = 26
_LABEL = 150
_BAR = 225
_VALUE = 125
_WIDTH = _LABEL + _BAR + _VALUE
_MODULES = 40

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #dfe3e8; --back: #f6f7f9; --card: #ffffff;
  --a: #2f6fb3; --b: #d98a29; --warn: #a3341f; --warnback: #fdeeea; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa5b4; --line: #333c48; --back: #14181d;
  --card: #1c2229; --a: #6ba6e8; --b: #e5a55a; --warn: #ff9d87; --warnback: #3a211c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 21px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 15px; margin: 0 0 10px; }
p { margin: 4px 0 0; color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px; margin: 22px 0 12px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 14px 16px; min-width: 0; }
.tile b { display: block; font-size: 23px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; display: block; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 470px), 1fr)); gap: 12px; }
.wide { grid-column: 1 / -1; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif; font-variant-numeric: tabular-nums; }
svg .soft { fill: var(--soft); }
svg .a { fill: var(--a); } svg .b { fill: var(--b); } svg .track { fill: var(--line); opacity: .45; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; font-size: 13px; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; padding-left: 0; }
tr:last-child td { border-bottom: 0; }
.scroll { overflow-x: auto; }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin: 0 5px 0 0; vertical-align: -1px; }
.warn { background: var(--warnback); border-color: var(--warn); color: var(--warn); margin-bottom: 12px; }
"""


def page(found: Stats) -> str:
    """The whole page.

    Args:
        found: the figures.
    """
    cards = [
        _card("Blobs by size", _bars(_counts(found.sizes), "a")),
        _card("Bytes by size of blob", _bars(_bytes(found.sizes), "b")),
        _card("Blobs by age", _bars(_counts(found.ages), "a")),
        _card("Bytes by age of blob", _bars(_bytes(found.ages), "b")),
        _card("What sharing saves", _sharing(found)),
        _card("A gc now", _free(found)),
    ]
    if found.modules:
        cards += [_card("Entries by age", _entry_ages(found)), _card("Stored bytes by module", _module_bars(found))]
        cards.append(f'<section class="card wide"><h2>Modules</h2>{_modules(found)}</section>')
    when = found.time[:19].replace("T", " ")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(found.store)}: store figures</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{_text(found.store)}</h1><p>store {_text(found.id)} on {when} UTC</p>"
        f'<div class="tiles">{_tiles(found)}</div>{_warning(found)}<div class="plots">{"".join(cards)}</div>'
        "</main></body></html>\n"
    )


def _text(text: str) -> str:
    return escape(text.encode("utf-8", "backslashreplace").decode())


def _card(title: str, body: str) -> str:
    return f'<section class="card"><h2>{title}</h2>{body}</section>'


def _tiles(found: Stats) -> str:
    ratio = found.dedup_ratio
    tiles = (
        (f"{found.blobs.count:,}", "blobs", size_text(found.blobs.bytes)),
        (f"{found.entries.count:,}", "entries", f"{found.tombstones.count:,} ended"),
        ("-" if ratio is None else f"{ratio:.2f}", "dedup ratio", "bytes referred to, by bytes stored"),
        (f"{found.orphans.count:,}", "blobs that no entry needs", size_text(found.orphans.bytes)),
        (f"{found.fossils.count:,}", "condemned blobs", size_text(found.fossils.bytes)),
        (f"{found.pins:,}", "pins", f"{found.damaged.count:,} damaged set aside"),
    )
    return "".join(
        f'<div class="card tile"><b>{value}</b>{name}<span>{more}</span></div>' for value, name, more in tiles
    )


def _warning(found: Stats) -> str:
    if not (found.missing or found.unreadable):
        return ""
    return (
        f'<div class="card warn">{found.missing:,} blobs that entries need are missing, '
        f"and {found.unreadable:,} entries cannot be read: run <code>oarbank-cas verify</code>.</div>"
    )


Bars = Sequence[tuple[str, float, str]]
"""Label, length, and what stands behind the bar."""


def _counts(counts: Mapping[str, Count]) -> Bars:
    return [(name, count.count, f"{count.count:,}") for name, count in counts.items()]


def _bytes(counts: Mapping[str, Count]) -> Bars:
    return [(name, count.bytes, size_text(count.bytes)) for name, count in counts.items()]


def _bars(bars: Bars, color: str) -> str:
    """Horizontal bars, the longest as long as there is room."""
    most = max((length for _, length, _ in bars), default=0) or 1
    height = _ROW * len(bars)
    parts = []
    for index, (label, length, value) in enumerate(bars):
        top = index * _ROW
        wide = max(_BAR * length / most, 2 if length else 0)
        shown = label if len(label) <= 20 else label[:19] + "…"
        parts.append(
            f"<g><title>{_text(label)}: {_text(value)}</title>"
            f'<text x="{_LABEL - 10}" y="{top + 17}" text-anchor="end">{_text(shown)}</text>'
            f'<rect class="track" x="{_LABEL}" y="{top + 4}" width="{_BAR}" height="17" rx="2"/>'
            f'<rect class="{color}" x="{_LABEL}" y="{top + 4}" width="{wide:.1f}" height="17" rx="2"/>'
            f'<text class="soft" x="{_LABEL + _BAR + 10}" y="{top + 17}">{_text(value)}</text></g>'
        )
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _sharing(found: Stats) -> str:
    bars = [
        ("referred to", float(found.referenced.bytes), size_text(found.referenced.bytes)),
        ("stored for that", float(found.distinct.bytes), size_text(found.distinct.bytes)),
        ("no entry needs", float(found.orphans.bytes), size_text(found.orphans.bytes)),
    ]
    saved = max(found.referenced.bytes - found.distinct.bytes, 0)
    return _bars(bars, "a") + f"<p>{size_text(saved)} are not stored twice.</p>"


def _free(found: Stats) -> str:
    if found.free is None:
        return "<p>Not asked for.</p>"
    rows = (
        ("would remove", found.free.purged),
        ("would condemn", found.free.condemned),
        ("would end (entries)", found.free.expired),
    )
    bars = [(name, float(count.bytes), f"{count.count:,}: {size_text(count.bytes)}") for name, count in rows]
    why = "" if found.free.why_not is None else f"<p>It would stop: {_text(found.free.why_not)}</p>"
    return _bars(bars, "b") + why


def _entry_ages(found: Stats) -> str:
    totals: dict[str, int] = dict.fromkeys(found.ages, 0)
    for module in found.modules.values():
        for age, count in module.ages.items():
            totals[age] += count
    return _bars([(age, count, f"{count:,}") for age, count in totals.items()], "a")


def _module_bars(found: Stats) -> str:
    ordered = sorted(found.modules.items(), key=lambda item: -item[1].distinct.bytes)[:12]
    return _bars([(name or "-", m.distinct.bytes, size_text(m.distinct.bytes)) for name, m in ordered], "b")


def _modules(found: Stats) -> str:
    ordered = sorted(found.modules.items(), key=lambda item: -item[1].distinct.bytes)
    rows = [
        "<tr>"
        + "".join(
            f"<td>{cell}</td>"
            for cell in (
                _text(name or "-"),
                f"{module.entries.count:,}",
                f"{module.tombstones.count:,}",
                f"{module.distinct.count:,}",
                size_text(module.distinct.bytes),
                size_text(module.referenced.bytes),
                (module.to_json()["last_recorded_at"] or "-")[:10],
            )
        )
        + "</tr>"
        for name, module in ordered[:_MODULES]
    ]
    heads = ("module", "entries", "ended", "blobs", "stored", "referred to", "last recorded")
    more = f"<p>and {len(ordered) - _MODULES} more</p>" if len(ordered) > _MODULES else ""
    head = "".join(f"<th>{each}</th>" for each in heads)
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>{more}'
