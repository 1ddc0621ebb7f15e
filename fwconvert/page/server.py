"""Show the page of a run from this machine, live, with a reader of its documents.

Only for people at this machine: it listens on loopback, answers nobody who
reached it under another name or from another page, changes nothing, and says by
its headers that no other page may read, frame or embed it.
"""

import os
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fwconvert.errors import FwconvertError, UsageError, message, printable
from fwconvert.inspection.trace import trace
from fwconvert.page import facts as known
from fwconvert.page import words
from fwconvert.page.facts import Facts
from fwconvert.page.reading import MOST_TOKENS, Piece, Place, Reader
from fwconvert.page.render import render
from fwconvert.page.timeline import SessionFacts, past_sessions, speed
from fwconvert.store import layout, pulses
from fwconvert.store.local import open_store
from fwconvert.store.pulses import Pulse

DEFAULT_PORT = 8642
_HOST = "127.0.0.1"
# A page is made anew when something of the run has changed, but not more often.
_FRESH_SECONDS = 10.0
_HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_MOST_NOTICES = 40
_MOST_LINES = 64


class Doorkeeper:
    """Lets in only who reads, under a name of loopback, from this page or from none."""

    def __init__(self, inside: ASGIApp, port: int) -> None:
        self._inside = inside
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self._origins = {f"http://{host}" for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._inside(scope, receive, send)
            return

        async def send_with_headers(answer: Message) -> None:
            if answer["type"] == "http.response.start":
                told = {name for name, _ in answer["headers"]}
                more = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                answer["headers"] = [*answer["headers"], *(one for one in more if one[0] not in told)]
            await send(answer)

        refused = self._refusal(scope)
        await (refused or self._inside)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts, origins = headers.get("host", []), headers.get("origin", [])
        # A name that somebody else's server has given to 127.0.0.1 is not one of ours.
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return PlainTextResponse("this page is for 127.0.0.1 alone\n", 421)
        site = headers.get("sec-fetch-site", ["none"])
        navigates = headers.get("sec-fetch-mode") == ["navigate"]
        if any(one not in self._origins for one in origins) or (
            any(one not in {"none", "same-origin"} for one in site)
            and not (navigates and scope["path"] == "/")
        ):
            return PlainTextResponse("this page is not for other pages\n", 403)
        if scope["method"] not in {"GET", "HEAD"}:
            return PlainTextResponse("there is nothing to write to here\n", 405, {"allow": "GET, HEAD"})
        return None


class Browsing:
    """What the server knows of the run, made anew when the run has changed."""

    def __init__(self, out: str | os.PathLike[str], program: str) -> None:
        self.out, self.program = out, program
        self._lock = threading.Lock()
        self._seen: tuple[object, ...] = ()
        # Sessions that are over do not change.
        self._ended: dict[str, SessionFacts] = {}
        self._looked_at = 0.0
        self.facts: Facts = known.gather(out)
        self.reader = Reader(known.open_to_look(out).run)
        self.version = 1
        self._seen = self._signs()

    def renew(self) -> None:
        """Look at the run again if something has changed, and the last look is a while ago."""
        with self._lock:
            if time.monotonic() - self._looked_at < _FRESH_SECONDS:
                return
            self._looked_at = time.monotonic()
            signs = self._signs()
            if signs == self._seen:
                return
            try:
                facts, reader = known.gather(self.out), Reader(known.open_to_look(self.out).run)
            except (FwconvertError, OSError):  # It is gone, or just being changed: what was known still is.
                return
            self.facts, self.reader = facts, reader
            self._seen, self.version = signs, self.version + 1

    def _signs(self) -> tuple[object, ...]:
        """Return what changes whenever there is something new to say."""
        store = open_store(self.out)
        try:
            manifest = store.state(layout.MANIFEST)
            folders = [sorted(store.list(name)) for name in (layout.RECEIPTS, layout.JOINS, layout.SESSIONS)]
        except (FwconvertError, OSError):
            return ()
        return manifest, *map(tuple, folders), store.holder()

    def news(self) -> dict[str, Any]:
        """Return how far the run is just now."""
        self.renew()
        facts = self.facts
        found: dict[str, Any] = {
            "made": self.version,
            "at_work": facts.at_work,
            "complete": facts.complete,
            "latest": None,
            "notices": [],
            "speed": None,
        }
        store = open_store(self.out)
        past = past_sessions(store, facts.manifest.sessions, self._ended)
        timed = [one for one in past if one.timeline is not None]
        if not timed:
            return found
        working = [one for one in timed if one.at_work]
        if working:
            told = [pulses.read(store, one.id) for one in working]
            found["latest"] = _latest(working, [pulse for pulse in told if pulse is not None])
            found["at_work"] = facts.at_work or ", ".join(one.id for one in working)
            found["speed"] = speed(timed)
        notices = [
            notice for one in (working or timed[-1:]) if one.timeline for notice in one.timeline.notices
        ]
        found["notices"] = [
            {"after": words.duration(one.seconds), "text": printable(one.text)}
            for one in notices[-_MOST_NOTICES:]
        ]
        return found


def _latest(working: list[SessionFacts], told_by: list[Pulse]) -> dict[str, Any] | None:
    """Return how far the sessions at work say the run is; ranks count their shares.

    Progress and time left are those that their terminals show.
    """
    told = [one.timeline for one in working if one.timeline is not None and one.timeline.latest is not None]
    latest = [one.latest for one in told if one.latest is not None]
    if not latest:
        return None
    units, done = sum(one.units for one in latest), sum(one.units_done for one in latest)
    rate = sum(_rate([(m.seconds, m.tokens) for m in one.moments]) for one in told)
    fetching = sum(_rate([(m.seconds, m.fetched) for m in one.moments if m.fetched >= 0]) for one in told)
    share = done / units if units > 0 else 0.0
    left = ""
    if len(told_by) == len(working):
        share = sum(one.progress for one in told_by) / len(told_by)
        seconds = [one.seconds_left for one in told_by if one.seconds_left is not None]
        left = f" · {words.duration(max(seconds))} left" if len(seconds) == len(told_by) else ""
    share = min(1.0, max(0.0, share))
    tokens = sum(one.tokens for one in latest)
    line = f"{share:.1%}{left} · {words.billions(tokens)} tokens · {words.billions(rate)} tokens/s"
    details = [
        {
            "convert": "converting",
            "join": "joining",
            "check": "checking what is there",
            "copy": "copying",
        }.get(latest[0].phase, latest[0].phase[:40]),
        f"{sum(one.jobs_done for one in latest):,} of {sum(one.jobs for one in latest):,} sources are done",
    ]
    if any(one.fetched >= 0 for one in latest):
        fetched = sum(max(0, one.fetched) for one in latest)
        connections = sum(one.connections for one in latest)
        details.append(
            f"fetched {words.size(fetched)}, {words.size(fetching)}/s"
            f" by {words.number(connections, 'connection')}"
        )
    limits = [one.moments[-1].limit for one in told if one.moments]
    if limits and limits[0] in {"network", "workers", "--limit"}:
        details.append(f"limited by {'processors' if limits[0] == 'workers' else limits[0]}")
    details.append(f"told {words.duration(max(0.0, time.time() - max(one.told for one in told)))} ago")
    running = [one for each in latest for one in each.running][:_MOST_LINES]
    downloads = [one for each in latest for one in each.downloads if one.bytes][:_MOST_LINES]
    return {
        "share": share,
        "line": line,
        "details": " · ".join(details),
        "running": [
            {
                "title": printable(one.title),
                "share": min(1.0, max(0.0, one.fraction)),
                "line": f"{one.fraction:.0%}, {words.billions(one.tokens)} tokens"
                + (f", on {printable(one.node)}" if one.node else ""),
            }
            for one in running
        ],
        "downloads": [
            {
                "title": printable(one.title),
                "share": min(1.0, max(0.0, one.bytes / max(1, one.size))),
                "line": f"{one.bytes / max(1, one.size):.0%}, {words.size(one.bytes)} fetched"
                + (f", by {printable(one.node)}" if one.node else ""),
            }
            for one in downloads
        ],
    }


def _rate(amounts: list[tuple[float, int]]) -> float:
    """Return how fast a number has grown in the last half minute."""
    if len(amounts) < 2:
        return 0.0
    end, last = amounts[-1]
    begin, first = next(one for one in amounts if one[0] >= end - 30 or one is amounts[-2])
    return max(0, last - first) / (end - begin) if end > begin else 0.0


class _Server(uvicorn.Server):
    """Leaves signals to whoever called it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(
    out: str | os.PathLike[str],
    port: int | None,
    told: Callable[[str], None],
    stop: threading.Event,
    program: str,
) -> None:
    """Serve the page of the run in `out` until `stop` is set; `told` is given its address when it answers.

    `program` is what is typed to run this program.

    Raises UsageError if there is no run, or if the port is taken. None: the usual port, or any.
    """
    browsing = Browsing(out, program)
    with _listening(port) as listener:
        number = listener.getsockname()[1]
        config = uvicorn.Config(
            Doorkeeper(application(browsing), number),
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
            limit_concurrency=64,
        )
        server = _Server(config)

        def watch() -> None:
            stop.wait()
            server.should_exit = True

        threading.Thread(target=watch, name="stop", daemon=True).start()
        told(f"http://{_HOST}:{number}/")
        server.run(sockets=[listener])


@contextmanager
def _listening(port: int | None) -> Iterator[socket.socket]:
    tried: Iterable[int] = (DEFAULT_PORT, 0) if port is None else (port,)
    reason: OSError | None = None
    for number in tried:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if os.name == "posix":  # A server that has just ended keeps nobody from its port.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((_HOST, number))
            listener.listen(64)
        except (OSError, OverflowError) as error:
            listener.close()
            reason = error if isinstance(error, OSError) else OSError(str(error))
            continue
        with listener:
            yield listener
        return
    raise UsageError(
        message(
            "this port cannot be used",
            "choose another --port, or leave it out",
            port=port,
            reason=reason and (reason.strerror or reason),
        )
    )


def application(browsing: Browsing) -> Starlette:
    """Return the pages and answers for a run; all of them only read."""

    async def page(_: Request) -> Response:
        def made() -> Response:
            browsing.renew()
            rendered = render(browsing.facts, live=True, program=browsing.program)
            return HTMLResponse(
                rendered.html,
                headers={"content-security-policy": f"{rendered.policy}; frame-ancestors 'none'"},
            )

        return await run_in_threadpool(made)

    def answering(answer: Callable[[Request], dict[str, Any]]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            try:
                return JSONResponse(await run_in_threadpool(answer, request))
            except (FwconvertError, OSError) as error:
                return JSONResponse({"error": printable(str(error))}, 400)

        return endpoint

    def document(request: Request) -> dict[str, Any]:
        given, reader = request.query_params, browsing.reader
        if "document" in given:
            piece = reader.document(_whole(given["document"], "document"))
            return _as_json(browsing, piece, piece.begin)
        line = reader.line(given.get("shard", ""))
        if "token" in given:
            offset = _whole(given["token"], "token", least=-1)
            offset = line.tokens - 1 if offset == -1 else offset
            piece = reader.at(line.name, offset)
            # A document is shown from its beginning, unless the token is far behind.
            first = piece.begin if offset - piece.begin < MOST_TOKENS else offset
            if "first" in given:
                first = _whole(given["first"], "first")
            return _as_json(browsing, piece, first)
        piece = reader.numbered(line.name, _whole(given.get("number", "1"), "number"))
        return _as_json(browsing, piece, piece.begin)

    def search(request: Request) -> dict[str, Any]:
        given, reader = request.query_params, browsing.reader
        line = reader.line(given.get("shard", ""))
        place, after = reader.search(
            line.name, given.get("text", ""), _whole(given.get("begin", "0"), "begin")
        )
        return {
            "place": None if place is None else {"shard": place.shard, "offset": place.offset},
            "next": after,
            "tokens": line.tokens,
        }

    def look_up(request: Request) -> dict[str, Any]:
        given = request.query_params
        line = browsing.reader.line(given.get("shard", ""))
        found = trace(browsing.out, f"{line.name}:{_whole(given.get('token', ''), 'token')}")
        rows = [
            ("source", found.source),
            ("row", f"{found.row:,}"),
            ("id", found.id),
            ("URL", found.url),
            ("dataset", " ".join(filter(None, (found.dataset, found.revision)))),
            ("not read", found.missing),
        ]
        return {"rows": [(name, printable(value)) for name, value in rows if value]}

    return Starlette(
        routes=[
            Route("/", page, methods=["GET"]),
            Route("/api/now", answering(lambda _: browsing.news()), methods=["GET"]),
            Route("/api/document", answering(document), methods=["GET"]),
            Route("/api/search", answering(search), methods=["GET"]),
            Route("/api/trace", answering(look_up), methods=["GET"]),
        ]
    )


def _as_json(browsing: Browsing, piece: Piece, first: int) -> dict[str, Any]:
    reader = browsing.reader
    tokens = reader.tokens(piece, first)

    def place(one: Place | None) -> dict[str, Any] | None:
        return None if one is None else {"shard": one.shard, "offset": one.offset}

    return {
        "program": browsing.program,
        "run": shlex.quote(browsing.facts.address),
        "shard": piece.shard,
        "shard_tokens": reader.line(piece.shard).tokens,
        "number": piece.number,
        "in_run": reader.number_in_run(piece),
        "documents": piece.documents,
        "begin": piece.begin,
        "end": piece.end,
        "first": max(piece.begin, first),
        "path": printable(piece.path),
        "row": piece.row,
        "continued_from": place(piece.continued_from),
        "continued_in": place(piece.continued_in),
        "tokens": [[one.id, one.text, *([True] if one.is_separator else [])] for one in tokens],
    }


def _whole(text: str, name: str, least: int = 0) -> int:
    if not re.fullmatch("-?[0-9]{1,18}", text) or int(text) < least:
        raise UsageError(message(f"{name} is not a whole number such as 3", given=text[:50]))
    return int(text)
