"""Tokenizers that a file defines: which the user names, and which a run keeps.

Any file may be named, and a stranger may have made it. So its size is bounded
before it is read, and it is looked at in a process of its own, which ends if it
wants too much memory or time: there it is parsed, its separators are found, and
its library loads it. What decides bytes goes into the recipe: the sha256 of the
file, the number of ids and the separators' ids. The file itself is kept in the
run, as a rank table is, and is proven by its sha256 whenever it is read; so
nobody needs the original, or the hub, to go on.

Light: the driver holds the bytes, a worker loads them.
"""

import hashlib
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fwconvert import files
from fwconvert.errors import EndedApart, ManifestError, UsageError, message
from fwconvert.options import Encoder, EncoderChoice
from fwconvert.processes import CallApart, ProcessLimits, call_apart
from fwconvert.store import atomic
from fwconvert.tokens import choosing
from fwconvert.tokens.choosing import why_no_gigatoken
from fwconvert.tokens.definition import MOST_BYTES
from fwconvert.tokens.spec import Loading, TokenizerSpec

if TYPE_CHECKING:
    from fwconvert.tokens.gigatoken import FastTokenizer
    from fwconvert.tokens.tokenizer import Tokenizer

# Gemma 3, the largest there is, takes 1 GB and 5 s to look at.
_GUARD = ProcessLimits(memory_bytes=6 * 2**30, stall_seconds=180.0)


@dataclass(frozen=True)
class Given:
    """The file that a user has named, wherever it was."""

    kind: str
    # In the recipe: the file's name, or the repository and its commit.
    name: str
    content: bytes
    # A tokenizer_config.json beside it; b"" if there is none.
    config: bytes = b""
    eot_token: str | None = None
    bos_token: str | None = None


class Library(Protocol):
    """What a kind does with a definition. It loads much, so it is asked in workers alone."""

    def examine(self, given: Given) -> TokenizerSpec:
        """Return what a file defines; raise UsageError for anything else than a definition of this kind."""

    def reference(self, spec: TokenizerSpec, content: bytes, how: Loading) -> "Tokenizer":
        """Return the tokenizer that is the definition of correct."""

    def why_not_fast(self, content: bytes) -> str:
        """Return why gigatoken must not be used for a definition; "" if it may be tried."""

    def fast(self, spec: TokenizerSpec, content: bytes, how: Loading) -> "FastTokenizer":
        """Return the fast one, or raise anything if gigatoken does not take the definition."""


@dataclass(frozen=True)
class DefinedKind:
    """Loads the tokenizers of one library; see spec.TokenizerKind."""

    kind: str
    suffix: str
    # What it needs beside what fwconvert needs: a module and the extra that has it; "": nothing.
    module: str
    extra: str
    reference_name: str
    # MB of English text in a second, on one core: see BENCHMARKS.md.
    reference_speed: str

    def names(self) -> list[str]:
        """Have no names: whatever a user names is a file."""
        return []

    def find(
        self,
        name: str,  # noqa: ARG002
        eot_token: str | None = None,  # noqa: ARG002
        bos_token: str | None = None,  # noqa: ARG002
    ) -> TokenizerSpec | None:
        """Know no names; see `examine`."""
        return None

    def examine(self, given: Given, apart: CallApart = call_apart) -> TokenizerSpec:
        """Return what a file defines, and remember it for `provide`; raise UsageError if it is none."""
        self._refuse_missing_library()
        try:
            spec = apart(_examine, given, _GUARD)
        except EndedApart as ended:
            raise UsageError(
                message(
                    "this tokenizer cannot be looked at",
                    "name another file; this one is damaged, or larger than any tokenizer",
                    tokenizer=given.name,
                    reason=ended,
                )
            ) from None
        remember(given.content)
        return spec

    def choose_encoder(
        self, spec: TokenizerSpec, wanted: EncoderChoice, apart: CallApart, folder: Callable[[], Path | None]
    ) -> tuple[Encoder, str]:
        """See TokenizerKind."""
        if wanted != "reference":
            self._refuse_missing_library()
        return choosing.choose(
            wanted,
            lambda: why_no_gigatoken() or self._why_fast_fails(spec, self._content(spec, folder()), apart),
            lambda reason: (
                f"{self.reference_name} encodes, about {self.reference_speed} MB of text a second "
                f"in each process, where gigatoken does 20 to 150: {reason}"
            ),
        )

    def provide(self, spec: TokenizerSpec, folder: Path) -> None:
        """See TokenizerKind."""
        self._refuse_missing_library()
        if not self._is_kept(spec, folder):
            content = self._content(spec, folder)
            atomic.make_folder(folder)
            atomic.replace(self._place(spec, folder), content)

    def copy(self, spec: TokenizerSpec, folder: Path, target: Path) -> None:
        """See TokenizerKind."""
        if not self._is_kept(spec, target):
            with suppress(ManifestError):
                content = self._content(spec, folder)
                atomic.make_folder(target)
                atomic.replace(self._place(spec, target), content)

    def load(self, spec: TokenizerSpec, folder: Path, how: Loading) -> "Tokenizer":
        """See TokenizerKind."""
        self._refuse_missing_library()
        library, content = library_of(self.kind), self._content(spec, folder)
        return (library.fast if how.encoder == "fast" else library.reference)(spec, content, how)

    def estimate_tokens(self, spec: TokenizerSpec, text_bytes: int, documents: int) -> int:
        """See TokenizerKind."""
        # English: 4.2 bytes with 32,000 ids, 4.7 with 128,000; measured on FineWeb-Edu.
        each = min(4.8, max(1.0, 0.28 * math.log2(spec.size)))
        return max(documents, round(text_bytes / each))

    def kept(self, spec: TokenizerSpec, folder: Path) -> bytes | None:
        """Return the file that a run keeps in a folder, or this process remembers, if it is the right one."""
        try:
            return self._content(spec, folder)
        except ManifestError:
            return None

    def _content(self, spec: TokenizerSpec, folder: Path | None) -> bytes:
        content = _REMEMBERED.get(spec.sha256)
        if content is not None:
            return content
        found: object = "nothing"
        if folder is not None:
            try:
                content = files.read_whole(self._place(spec, folder), MOST_BYTES)
                found = _sha256(content)
            except OSError as error:
                found = error
        if content is None or found != spec.sha256:
            raise ManifestError(
                message(
                    "the file that defines the tokenizer of this run is missing, or is another one",
                    "run the command that made the run again, with --tokenizer and that file",
                    tokenizer=spec.name,
                    file=folder and self._place(spec, folder),
                    wanted_sha256=spec.sha256,
                    found=found,
                )
            )
        return content

    def _is_kept(self, spec: TokenizerSpec, folder: Path) -> bool:
        try:
            return files.sha256_of(self._place(spec, folder)) == spec.sha256
        except OSError:
            return False

    def _place(self, spec: TokenizerSpec, folder: Path) -> Path:
        return folder / f"{spec.sha256}{self.suffix}"

    def _refuse_missing_library(self) -> None:
        if self.module and util.find_spec(self.module) is None:
            raise UsageError(
                message(
                    f"the package {self.module} is missing, which such a tokenizer needs",
                    f"pip install 'fwconvert[{self.extra}]'",
                )
            )

    def _why_fast_fails(self, spec: TokenizerSpec, content: bytes, apart: CallApart) -> str:
        try:
            return apart(_try_fast, (spec, content), _GUARD)
        except EndedApart as ended:
            return f"gigatoken does not work here: {ended}"


# By their sha256, what users have named in this process: a recipe holds no file.
_REMEMBERED: dict[str, bytes] = {}


def remember(content: bytes) -> None:
    """Remember a file for whoever needs it by its sha256 in this process."""
    _REMEMBERED[_sha256(content)] = content


def remembered(spec: TokenizerSpec) -> bytes:
    """Return the file that defines a tokenizer if this process remembers it; else b""."""
    return _REMEMBERED.get(spec.sha256, b"")


def library_of(kind: str) -> Library:
    """Return what a kind does with a definition. Loads much."""
    if kind == "hf":
        from fwconvert.tokens.hugging_face import HuggingFace  # noqa: PLC0415  # heavy, and an extra

        return HuggingFace()
    if kind == "sentencepiece":
        from fwconvert.tokens.sentence_pieces import SentencePieces  # noqa: PLC0415  # as above

        return SentencePieces()
    from fwconvert.tokens.rank_files import RankFiles  # noqa: PLC0415  # heavy

    return RankFiles()


def _examine(given: Given) -> TokenizerSpec:
    try:
        return library_of(given.kind).examine(given)
    except UsageError:
        raise
    except BaseException as error:  # noqa: BLE001  # a panic of Rust is no Exception, and cannot be sent on
        raise UsageError(
            message(
                "this tokenizer cannot be used",
                "look at the file; another version of its library may read it",
                tokenizer=given.name,
                reason=f"{type(error).__name__}: {error}",
            )
        ) from None


# Whether a library takes a definition at all, and a few words of all scripts; the audit sees the rest.
_TRIAL = (
    "Hello world, it's 2024!\n", "", "  na\u00efve \u4e2d\u6587 <|endoftext|>", " ", "</s><s>",
    "\n\n\n  a\t\tb  \r\n", "DON'T we'LL 1234567 3.14 x=y+1;", "e\u0301 \u00e9 \ufb01 \u1e9b\u0323 \uac00",
    "\U0001f44d\U0001f3fd \U0001f469\u200d\U0001f467", "\u00a0\u2003\u3000x", "\u2581under\u2581 \u2581",
    "\u0001\u007f\ufffd", "\u0645\u0631\u062d\u0628\u0627 \u0939\u093f\u0928 \u0440\u0443\u0441\u0441",
    "http://example.org/a_b?c=d&e=%20f", "word " * 200, " " * 300 + "x", "a" * 300,
)  # fmt: skip


def _try_fast(question: tuple[TokenizerSpec, bytes]) -> str:
    """Return why gigatoken is not the fast way for a definition, or "". What is tried may end its process."""
    import pyarrow as pa  # noqa: PLC0415  # heavy

    spec, content = question
    texts = pa.array(_TRIAL, pa.string())
    library = library_of(spec.kind)
    try:
        if reason := library.why_not_fast(content):
            return reason
        fast = library.fast(spec, content, Loading("fast"))
        found, wanted = fast.encode(texts), fast.reference.encode(texts)
    except BaseException as error:  # noqa: BLE001  # a panic of Rust is no Exception
        reason = str(error).partition("\n")[0][:300]  # Rust adds where in its sources that is.
        return f"gigatoken does not take this tokenizer: {type(error).__name__}: {reason}"
    same = (
        found.tokens.tolist() == wanted.tokens.tolist() and found.offsets.tolist() == wanted.offsets.tolist()
    )
    return "" if same else "gigatoken gives other tokens than the reference"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
