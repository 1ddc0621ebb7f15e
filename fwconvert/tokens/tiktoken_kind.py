"""Tokenizers of tiktoken: which there are, where their rank tables come from, and which encoder is used.

A vocabulary is known by the sha256 of its rank table, which tiktoken pins in
its source and we pin here again; a table is proven every time it is read. The
tables of gpt2 and cl100k_base ship with the package, so that a machine without
a network works. Any other table comes from tiktoken's cache, or else from the
address that tiktoken has for it and into that cache, once, in the driver
(`provide_table`). tiktoken itself would wait for ever and read whatever comes.
Workers only read (`read_table`): sixteen of them that each download the same
table are slow at best, and without a network hopeless.

tiktoken is the reference, gigatoken the fast way to the same ids. Which of the
two encodes is an option, not part of the recipe. gigatoken may be installed and
not import (a broken installation, another Python mode), or end the process (an
instruction that an old processor lacks). So it is tried in another process
before anything depends on it, which also keeps it out of the driver's memory:
in the first worker where workers are processes of this machine, since that has
to load it anyway, and otherwise in one of its own.

Light on purpose: the driver chooses, a worker loads.
"""

import hashlib
import importlib.resources
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fwconvert import files
from fwconvert.addresses import plain
from fwconvert.errors import EndedApart, FwconvertError, ManifestError, UsageError, message
from fwconvert.hub.retry import TransientError
from fwconvert.options import Encoder, EncoderChoice
from fwconvert.processes import CallApart, ProcessLimits, call_apart
from fwconvert.store import atomic
from fwconvert.tokens import choosing, separators
from fwconvert.tokens.spec import Loading, TokenizerSpec

if TYPE_CHECKING:
    from fwconvert.tokens.tokenizer import Tokenizer

# gigatoken's names for the split patterns, by rank table. It refuses p50k_base, whose ranks have gaps.
PRETOKENIZERS = {"r50k_base": "gpt2", "cl100k_base": "gpt4", "o200k_base": "o200k"}


BUNDLED = frozenset({"r50k_base", "cl100k_base"})

# The largest table (o200k_base) has 3.6 MB; a damaged file must not fill the memory.
MOST_TABLE_BYTES = 32 * 2**20

# Someone is waiting for it.
_CALL_SECONDS = 30.0
_MOST_SECONDS = 300.0

# How text is cut into words before any merging: part of an encoding's definition, so copied
# to the letter from tiktoken 0.14, tiktoken_ext/openai_public.py (MIT licence, OpenAI).
_R50K_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {"r50k_base": _R50K_PATTERN, "cl100k_base": _CL100K_PATTERN, "o200k_base": _O200K_PATTERN}


@dataclass(frozen=True, kw_only=True)
class Vocabulary(TokenizerSpec):
    """A tokenizer that is built in."""

    built_in: bool = True
    # The rank table's name.
    table: str
    pattern: str
    # By name, and every id that no text gives: the special tokens, and those that the rank table leaves out.
    specials: Mapping[str, int]
    free: range
    # Bytes of FineWeb-Edu text for each token, separators included (10BT: 46.2 GB of text, 9.98e9 tokens).
    text_bytes_per_token: float

    @property
    def url(self) -> str:
        """Where tiktoken gets the rank table from."""
        return f"https://openaipublic.blob.core.windows.net/encodings/{self.table}.tiktoken"

    @property
    def separator_texts(self) -> dict[str, int]:
        """The separators by the texts that they are decoded to."""
        names = {number: name for name, number in self.specials.items()}
        ids = (self.eot,) if self.bos is None else (self.bos, self.eot)
        return {names.get(number, f"<|{number}|>"): number for number in ids}


_R50K_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
_P50K_SHA256 = "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"
_CL100K_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
_O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


EOT_TEXT = "<|endoftext|>"


def _tiktoken(
    name: str, table: str, sha256: str, ids: tuple[int, range, dict[str, int]], how: tuple[str, float]
) -> Vocabulary:
    """Return a vocabulary of tiktoken: its ids, its pattern and its bytes of text for each token.

    The ids are its size, those that no text gives, and its special tokens.
    """
    return Vocabulary(
        kind="tiktoken",
        name=name,
        table=table,
        sha256=sha256,
        size=ids[0],
        eot=ids[2][EOT_TEXT],
        specials=ids[2],
        free=ids[1],
        pattern=how[0],
        text_bytes_per_token=how[1],
    )


_R50K_IDS = 50257, range(50256, 50257), {EOT_TEXT: 50256}
# Its ranks go on behind the special token.
_P50K_IDS = 50281, range(50256, 50257), {EOT_TEXT: 50256}
_CL100K_IDS = (
    100277,
    range(100256, 100277),
    {
        EOT_TEXT: 100257,
        "<|fim_prefix|>": 100258,
        "<|fim_middle|>": 100259,
        "<|fim_suffix|>": 100260,
        "<|endofprompt|>": 100276,
    },
)
_O200K_IDS = 200019, range(199998, 200019), {EOT_TEXT: 199999, "<|endofprompt|>": 200018}

VOCABULARIES = {
    vocabulary.name: vocabulary
    for vocabulary in (
        # tiktoken makes gpt2 from two older files. Its ids are those of r50k_base: a test derives both files.
        _tiktoken("gpt2", "r50k_base", _R50K_SHA256, _R50K_IDS, (_R50K_PATTERN, 4.63)),
        _tiktoken("r50k_base", "r50k_base", _R50K_SHA256, _R50K_IDS, (_R50K_PATTERN, 4.63)),
        _tiktoken("p50k_base", "p50k_base", _P50K_SHA256, _P50K_IDS, (_R50K_PATTERN, 4.63)),
        _tiktoken("cl100k_base", "cl100k_base", _CL100K_SHA256, _CL100K_IDS, (_CL100K_PATTERN, 4.7)),
        _tiktoken("o200k_base", "o200k_base", _O200K_SHA256, _O200K_IDS, (_O200K_PATTERN, 4.75)),
    )
}


def find(name: str) -> Vocabulary:
    """Return the built-in vocabulary of this name, or raise KeyError; elsewhere, ask the registry."""
    return VOCABULARIES[name]


class TiktokenKind:
    """See spec.TokenizerKind."""

    def names(self) -> list[str]:
        """See TokenizerKind."""
        return list(VOCABULARIES)

    def find(
        self, name: str, eot_token: str | None = None, bos_token: str | None = None
    ) -> TokenizerSpec | None:
        """See TokenizerKind."""
        known = VOCABULARIES.get(name)
        if known is None:
            return None
        return separators.chosen(known, known.specials, known.free, eot_token, bos_token)

    def choose_encoder(
        self,
        spec: TokenizerSpec,
        wanted: EncoderChoice,
        apart: CallApart,
        folder: Callable[[], Path | None],  # noqa: ARG002
    ) -> tuple[Encoder, str]:
        """See TokenizerKind."""
        return choose(wanted, find(spec.name), lambda known: why_fast_fails(known, apart))

    def provide(self, spec: TokenizerSpec, folder: Path) -> None:
        """See TokenizerKind."""
        provide_table(find(spec.name), folder)

    def copy(self, spec: TokenizerSpec, folder: Path, target: Path) -> None:
        """See TokenizerKind."""
        copy_table(find(spec.name), folder, target)

    def load(self, spec: TokenizerSpec, folder: Path, how: Loading) -> "Tokenizer":
        """See TokenizerKind."""
        known = replace(find(spec.name), eot=spec.eot, bos=spec.bos)
        table = read_table(known, folder)
        if how.encoder == "fast":
            from fwconvert.tokens import gigatoken  # noqa: PLC0415  # heavy

            return gigatoken.of_table(known, table, how.threads, how.scratch)
        from fwconvert.tokens.tokenizer import ReferenceTokenizer  # noqa: PLC0415  # heavy

        return ReferenceTokenizer(known, table, how.threads)

    def estimate_tokens(self, spec: TokenizerSpec, text_bytes: int, documents: int) -> int:
        """See TokenizerKind."""
        return max(documents, round(text_bytes / find(spec.name).text_bytes_per_token))


# Tells why the fast encoder fails on this machine, or "".
Trial = Callable[[Vocabulary], str]


def choose(wanted: EncoderChoice, known: Vocabulary, trial: Trial) -> tuple[Encoder, str]:
    """Return the encoder to use, and why it is not the fast one ("" if it is, or if that is no loss)."""
    return choosing.choose(
        wanted,
        lambda: _why_not_fast(known, trial),
        lambda reason: f"the reference encoder is used, which is slower: {reason}",
    )


def _why_not_fast(known: Vocabulary, trial: Trial) -> str:
    if known.table not in PRETOKENIZERS:
        return f"gigatoken does not know {known.name}"
    if missing := choosing.why_no_gigatoken():
        return missing
    failure = trial(known)
    return f"gigatoken is installed and does not work here: {failure}" if failure else ""


# Importing it takes a moment; from a slow network drive, many.
_GUARD = ProcessLimits(stall_seconds=60.0)


def why_fast_fails(known: Vocabulary, apart: CallApart = call_apart) -> str:
    """Return why gigatoken cannot be used for a vocabulary on this machine, or ""."""
    try:
        return apart(_try, known, _GUARD)
    except EndedApart as ended:
        return str(ended)


def _try(known: Vocabulary) -> str:
    try:
        from fwconvert.tokens.gigatoken import agrees  # noqa: PLC0415  # heavy, and what is tried: in its process only

        return "" if agrees(known) else "it gives other tokens than tiktoken"
    except BaseException as error:  # noqa: BLE001  # a panic of Rust is no Exception
        return f"{type(error).__name__}: {error}"


def provide_table(vocabulary: Vocabulary, folder: Path) -> None:
    """Make sure that `read_table(vocabulary, folder)` will work, now and in every worker.

    Parent only. Writes `folder/{sha256}.tiktoken` if the table is not bundled
    and not there yet; raises UsageError if it cannot be fetched.
    """
    if _is_bundled(vocabulary):
        read_table(vocabulary, folder)
    elif not _is_provided(vocabulary, folder):
        table = _through_tiktoken(vocabulary)
        atomic.make_folder(folder)
        atomic.replace(_provided(vocabulary, folder), table)


def read_table(vocabulary: Vocabulary, folder: Path) -> bytes:
    """Return the rank table, proven by its sha256.

    Reads the package and `folder`, never the network. A table that is missing
    or not the pinned one raises ManifestError.
    """
    where, table = _bundled(vocabulary) if _is_bundled(vocabulary) else _from_folder(vocabulary, folder)
    if _sha256(table) != vocabulary.sha256:
        raise ManifestError(_wrong_table(vocabulary, where, _sha256(table)))
    return table


def copy_table(vocabulary: Vocabulary, folder: Path, target: Path) -> None:
    """Copy a rank table that was provided in one folder to another, if it is there and right."""
    if _is_bundled(vocabulary) or _is_provided(vocabulary, target):
        return
    with suppress(ManifestError):
        table = read_table(vocabulary, folder)
        atomic.make_folder(target)
        atomic.replace(_provided(vocabulary, target), table)


def provided_name(vocabulary: Vocabulary) -> str:
    """Return the name of a rank table's file in the folder that it is provided in."""
    return f"{vocabulary.sha256}.tiktoken"


def _is_bundled(vocabulary: Vocabulary) -> bool:
    return vocabulary.table in BUNDLED


def _bundled(vocabulary: Vocabulary) -> tuple[str, bytes]:
    import zstandard  # noqa: PLC0415  (`--help` and `status` must not pay for it)

    file = importlib.resources.files("fwconvert") / "vocabularies" / f"{vocabulary.table}.tiktoken.zst"
    try:
        # decompress(max_output_size=) would believe the size in the frame's header; a reader does not.
        with file.open("rb") as packed, zstandard.ZstdDecompressor().stream_reader(packed) as reader:
            return str(file), reader.read(MOST_TABLE_BYTES)
    except (OSError, zstandard.ZstdError) as error:
        raise ManifestError(_wrong_table(vocabulary, str(file), error)) from error


def _from_folder(vocabulary: Vocabulary, folder: Path) -> tuple[str, bytes]:
    path = _provided(vocabulary, folder)
    try:
        return str(path), _read(path)
    except OSError as error:
        raise ManifestError(_wrong_table(vocabulary, str(path), error)) from error


def _provided(vocabulary: Vocabulary, folder: Path) -> Path:
    return folder / provided_name(vocabulary)


def _is_provided(vocabulary: Vocabulary, folder: Path) -> bool:
    try:
        return _sha256(_read(_provided(vocabulary, folder))) == vocabulary.sha256
    except OSError:
        return False


def _through_tiktoken(vocabulary: Vocabulary) -> bytes:
    """Return the proven table from tiktoken's cache or else from its URL, or raise UsageError."""
    cached = _cached(vocabulary)
    try:
        _refuse_wrong_cache(vocabulary)
        if cached is not None and cached.exists():
            return _read(cached)
        table = _downloaded(vocabulary.url)
    except (OSError, ValueError) as error:
        raise UsageError(_cannot_be_had(vocabulary, plain(error))) from None
    if _sha256(table) != vocabulary.sha256:
        raise UsageError(_cannot_be_had(vocabulary, f"the downloaded table has sha256 {_sha256(table)}"))
    if cached is not None:
        with suppress(FwconvertError):  # For the next run. This one has it.
            atomic.make_folder(cached.parent)
            atomic.replace(cached, table)
    return table


def _downloaded(url: str) -> bytes:
    """Return what is at an address; raise OSError if it cannot be fetched or is not a table."""
    from fwconvert.hub import client, http  # noqa: PLC0415  (as above)

    api = client.client()
    found, ends = bytearray(), time.monotonic() + _MOST_SECONDS
    try:
        with http.request(client.plain_session(), url, {}, _CALL_SECONDS) as response:
            if response.status != 200 or response.encoding:
                raise OSError(f"the server answers {response.status} {response.encoding}".strip())
            for part in response:
                found += part
                if len(found) > MOST_TABLE_BYTES or time.monotonic() > ends:
                    raise OSError(
                        f"{len(found):,} bytes came in {_MOST_SECONDS:.0f} s; a rank table is smaller"
                    )
    except (
        api.httpx.HTTPError,
        api.httpx.StreamError,
        TransientError,
        api.errors.OfflineModeIsEnabled,
    ) as error:
        raise OSError(f"{type(error).__name__}: {error}") from None
    return bytes(found)


def _refuse_wrong_cache(vocabulary: Vocabulary) -> None:
    # tiktoken removes a cached file whose hash is wrong and then downloads. Without a network
    # nothing would be left, not even the evidence.
    path = _cached(vocabulary)
    if path is not None and path.exists() and (found := _sha256(_read(path))) != vocabulary.sha256:
        raise ValueError(f"the file in tiktoken's cache has sha256 {found}; it was left alone")


def _cached(vocabulary: Vocabulary) -> Path | None:
    """Return the file in tiktoken's cache, by tiktoken's rules; None if the cache is switched off."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder is None:
        folder = str(Path(tempfile.gettempdir()) / "data-gym-cache")
    return Path(folder).absolute() / _cached_name(vocabulary) if folder else None


def _cached_name(vocabulary: Vocabulary) -> str:
    return hashlib.sha1(vocabulary.url.encode(), usedforsecurity=False).hexdigest()


def _read(path: Path) -> bytes:
    return files.read(path, MOST_TABLE_BYTES)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _wrong_table(vocabulary: Vocabulary, where: str, found: object) -> str:
    return message(
        "a rank table has the wrong content",
        "install fwconvert again" if _is_bundled(vocabulary) else "run the same command again",
        tokenizer=vocabulary.name,
        file=where,
        wanted_sha256=vocabulary.sha256,
        found=found,
    )


def _cannot_be_had(vocabulary: Vocabulary, reason: object) -> str:
    cached = _cached(vocabulary)
    return message(
        "the rank table of this tokenizer cannot be fetched",
        f"put the file of that url at that place and set TIKTOKEN_CACHE_DIR={cached.parent}"
        if cached
        else f"set TIKTOKEN_CACHE_DIR to a folder that holds that file as {_cached_name(vocabulary)}",
        "or choose gpt2 or cl100k_base, whose tables come with fwconvert",
        tokenizer=vocabulary.name,
        reason=reason,
        url=vocabulary.url,
        sha256=vocabulary.sha256,
        place=cached or "none: TIKTOKEN_CACHE_DIR is empty, which switches tiktoken's cache off",
    )
