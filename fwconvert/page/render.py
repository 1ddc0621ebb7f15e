"""The page of a run as one HTML text: nothing is loaded from anywhere, and all that is not ours is escaped.

The numbers of the charts stand in the page as JSON and are drawn by uPlot, which is
in it too; each chart has a table behind it. A strict Content-Security-Policy names
the page's own scripts and styles by their hashes, so that no text could add another.
"""

import base64
import hashlib
import json
import math
import shlex
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from fwconvert.page import facts as known
from fwconvert.page import words
from fwconvert.page.facts import Facts
from fwconvert.store.statistics import bin_begins

_PERCENTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
_MOST_DRAWN = 4000


@dataclass(frozen=True)
class Page:
    """A page, and what a server says with it: its Content-Security-Policy."""

    html: str
    policy: str


def render(facts: Facts, *, live: bool = False, program: str = "fwconvert") -> Page:
    """Return the page of a run; `live`: as it is served, with a reader and news.

    `program` is what is typed to run this program, for the commands that the page shows.
    """
    scripts = [_asset("uplot/uPlot.iife.min.js"), _asset("templates/charts.js")]
    if live:
        scripts.append(_asset("templates/live.js"))
    styles = [_asset("uplot/uPlot.min.css"), _asset("templates/page.css")]
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hashes(scripts)}",
            f"style-src {_hashes(styles)}",
            f"connect-src '{'self' if live else 'none'}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    html = _template().render(
        facts=facts,
        manifest=facts.manifest,
        headline=facts.manifest.headline,
        rules=facts.manifest.rules,
        live=live,
        policy=policy,
        scripts=[Markup(script) for script in scripts],  # noqa: S704  # ours, from the package
        styles=[Markup(style) for style in styles],  # noqa: S704
        data=_json(_drawn(facts)),
        recipe=words.recipe_in_words(facts.manifest),
        ways=words.ways(facts.manifest, facts.address, program),
        where=words.where_separated(facts.manifest.rules),
        program=program,
        there=shlex.quote(facts.address),
        percentiles=[] if facts.lengths is None else _percentiles(facts),
        shown=_shown(facts),
        most_rows=known.MOST_ROWS,
    )
    return Page(html, policy)


def _percentiles(facts: Facts) -> list[tuple[str, float]]:
    assert facts.lengths is not None  # noqa: S101  # for mypy
    found = [(f"{share:.0%}", known.percentile(facts.lengths, share)) for share in _PERCENTILES]
    return [("shortest", facts.lengths.least), *found, ("longest", facts.lengths.most)]


def _shown(facts: Facts) -> list[known.SourceFacts]:
    """Return the sources that have a row in tables: all, or those that stand out or failed, and some more."""
    if len(facts.sources) <= known.MOST_ROWS:
        return facts.sources
    first = [one for one in facts.sources if one.stands_out or one.failed][: known.MOST_ROWS // 2]
    chosen = {one.index for one in first}
    step = max(1, len(facts.sources) // (known.MOST_ROWS - len(first)))
    chosen |= {one.index for one in facts.sources[::step]}
    return [one for one in facts.sources if one.index in chosen]


def _drawn(facts: Facts) -> dict[str, Any]:
    """Return the numbers of all charts."""
    lengths, scores = facts.lengths, facts.scores
    every = max(1, math.ceil(len(facts.sources) / _MOST_DRAWN))
    drawn: dict[str, Any] = {
        "sources": [
            [
                one.index,
                one.path[-60:],
                None if one.job is None else one.job.tokens,
                None if one.bytes_per_token is None else round(one.bytes_per_token, 4),
                bool(one.stands_out),
            ]
            for one in facts.sources[::every]
        ],
        "speed": facts.points,
    }
    if lengths is not None:
        drawn["lengths"] = {
            "bins": [[number, count] for number, count in lengths.bins],
            "percentiles": [[name, round(value, 2)] for name, value in _percentiles(facts)[1:-1]],
        }
    if scores is not None:
        drawn["scores"] = {"width": 10.0**facts.score_step, "bins": [list(pair) for pair in scores.bins]}
    return drawn


def _json(value: object) -> Markup:
    """Return JSON that cannot end the element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # noqa: S704  # nothing is left that could be markup


@cache
def _asset(name: str) -> str:
    return resources.files("fwconvert.page").joinpath(*name.split("/")).read_text(encoding="utf-8")


def _hashes(texts: list[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


@cache
def _template() -> jinja2.Template:
    loader = jinja2.FunctionLoader(lambda name: _asset(f"templates/{name}"))
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "billions": words.billions,
        "size": words.size,
        "duration": words.duration,
        "thousands": lambda value: f"{value:,.0f}",
        "percent": lambda value: f"{value:.2%}",
    }
    environment.globals |= {"bin_begins": bin_begins, "zip": zip}
    return environment.get_template("page.html")
