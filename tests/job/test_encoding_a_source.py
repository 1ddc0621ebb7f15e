"""The documents of a source as tokens: counted, and audited against the reference."""

from pathlib import Path

import corpus
import numpy as np
import pyarrow as pa
import pytest
from examples import rules_with

from fwconvert.errors import SourceError
from fwconvert.job import encoded
from fwconvert.job.encoded import EncodedSource
from fwconvert.job.orders import ConvertOrder, NoReporter, RunContext, SourceFile
from fwconvert.options import Encoder
from fwconvert.recipes import SourceShard
from fwconvert.sources import parquet
from fwconvert.store import layout
from fwconvert.store.local import LocalStore
from fwconvert.tokens import registry
from fwconvert.tokens.gigatoken import FastTokenizer
from fwconvert.tokens.tokenizer import Encoded

pytest.importorskip("gigatoken", reason="the fast encoder has no wheel for this machine")


def order_for(path: Path, encoder: Encoder, threads: int = 1) -> ConvertOrder:
    LocalStore(path.parent).prepare()
    context = RunContext(str(path.parent), "id", rules_with(), "session", encoder, threads)
    return ConvertOrder(context, SourceShard(path.name, path.stat().st_size), 0, SourceFile(str(path)))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [*corpus.ODD, *(f"document {number}" for number in range(9000)), "\U000323b0 doubtful"]
    return corpus.write(tmp_path_factory.mktemp("source") / "a.parquet", texts)


def tokens_of(order: ConvertOrder) -> tuple[list[int], list[int], list[int], EncodedSource]:
    reading = EncodedSource(order, LocalStore(Path(order.context.run)), NoReporter())
    found = list(reading.batches())
    before = np.cumsum([0, *(len(batch.tokens) for batch in found)])
    starts = [batch.starts + at for batch, at in zip(found, before, strict=False)]
    return (
        np.concatenate([batch.tokens for batch in found]).tolist(),
        np.concatenate(starts).tolist(),
        np.concatenate([batch.rows for batch in found]).tolist(),
        reading,
    )


def test_fast_and_reference_agree_with_any_number_of_threads(file: Path) -> None:
    *wanted, reading = tokens_of(order_for(file, "reference"))
    assert reading.audited == 0
    for encoder in ("fast", "reference"):
        for threads in (1, 3):
            *found, other = tokens_of(order_for(file, encoder, threads))
            assert found == wanted
            assert other.counts == reading.counts


def test_about_one_in_a_thousand_is_audited_and_always_the_first(file: Path, tmp_path: Path) -> None:
    *_, reading = tokens_of(order_for(file, "fast"))
    assert 1 <= reading.audited <= 40
    *_, again = tokens_of(order_for(file, "fast"))
    assert again.audited == reading.audited
    one = corpus.write(tmp_path / "one.parquet", [None, "", "the only document"])
    assert tokens_of(order_for(one, "fast"))[-1].audited == 1


def test_the_sample_is_about_one_in_a_thousand_of_any_source() -> None:
    rows = np.arange(1_000_000)
    for salt in (0, 7, 999):
        assert 800 <= len(encoded._sample(rows, salt, first=False)) <= 1200


def test_a_difference_stops_the_job_and_names_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    table = {"text": [None, "first", "second"], "id": ["<urn:0>", "<urn:1>", "<urn:2>"]}
    import pyarrow.parquet as pq  # noqa: PLC0415

    pq.write_table(pa.table(table), path)
    real = FastTokenizer._encode

    def wrong(self: FastTokenizer, content: object, bounds: object) -> Encoded:
        encoded = real(self, content, bounds)  # type: ignore[arg-type]
        return Encoded(encoded.tokens + 1, encoded.offsets)

    monkeypatch.setattr(FastTokenizer, "_encode", wrong)
    with pytest.raises(SourceError) as caught:
        tokens_of(order_for(path, "fast"))
    told = str(caught.value)
    assert "a.parquet" in told
    assert "<urn:1>" in told
    assert "--encoder reference" in told


@pytest.mark.parametrize("eot", ["before", "after"])
@pytest.mark.parametrize("where", [None, "id != 3 and id != 11"])
def test_a_limit_ends_a_source_at_the_same_token_and_row_however_its_rows_are_batched(
    eot: str, where: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["ab", None, "c", "defg", "", None, "h", "ij", "", "", "k", "lmn", None, "o", None]
    file = corpus.write(tmp_path / "a.parquet", texts)
    rules = rules_with(tokenizer="bytes", eot=eot, where=where)
    context = RunContext(str(tmp_path), "id", rules, "session", "reference")
    kept = [(row, text) for row, text in enumerate(texts) if text and not (where and row in (3, 11))]
    allowed = [*((n, None) for n in range(1, 10)), *((None, n) for n in range(1, 26)), (4, 9), (2, 9)]
    for most, tokens in allowed:
        order = ConvertOrder(context, SourceShard("a", 1), 0, SourceFile(str(file)), most, tokens)
        seen = []
        for size in (1, 2, 3, 7, 2048):
            monkeypatch.setattr(parquet, "MOST_BATCH_ROWS", size)
            *found, reading = tokens_of(order)
            seen.append((found, reading.counts))
        assert all(each == seen[0] for each in seen)
        wanted: list[int] = []
        starts: list[int] = []
        rows: list[int] = []
        for row, text in kept[:most]:
            starts.append(len(wanted))
            rows.append(row)
            wanted += [256, *text.encode()] if eot == "before" else [*text.encode(), 256]
        whole = len(wanted)
        count = sum(start < (tokens or whole) for start in starts)
        (found_tokens, found_starts, found_rows), counts = seen[0]
        assert found_tokens == wanted[:tokens]
        assert (found_starts, found_rows) == (starts[:count], rows[:count])
        assert counts.limited == (count < len(kept) or (tokens or whole) < whole)
        assert counts.cut == (tokens is not None and tokens < whole and tokens not in starts)
        # Up to the first document that has no place; a document that is cut is the last thing that is read.
        end = len(texts) if not counts.limited else rows[count - 1] + 1 if counts.cut else kept[count][0]
        assert counts.rows == end
        assert counts.documents == count
        assert counts.null_rows == texts[:end].count(None)
        assert counts.empty_rows == texts[:end].count("")
        assert counts.filtered_rows == sum(row in (3, 11) for row in range(end)) * bool(where)


def test_a_separator_that_a_tokenizer_gives_for_text_after_all_stops_the_source(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    # A stranger's: the special token is spelt as the library spells the end of a word, which nobody types.
    letters = "abc</w>"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "bc</w>"]
    made = library.Tokenizer(
        library.models.BPE(
            vocab={word: number for number, word in enumerate(dict.fromkeys(words))},
            merges=[("b", "c</w>")],
            end_of_word_suffix="</w>",
        )
    )
    made.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["bc</w>"])
    made.save(str(tmp_path / "tokenizer.json"))
    spec = registry.find(str(tmp_path / "tokenizer.json"), "bc</w>")
    LocalStore(tmp_path).prepare()
    registry.kind_of(spec).provide(spec, LocalStore(tmp_path).pull(layout.VOCABULARIES))

    path = corpus.write(tmp_path / "a.parquet", ["a b", "ab", "a bc", "b"])
    rules = rules_with(**registry.as_rules(spec))
    context = RunContext(str(tmp_path), "id", rules, "session", "reference", 1)
    order = ConvertOrder(context, SourceShard(path.name, path.stat().st_size), 0, SourceFile(str(path)))
    with pytest.raises(SourceError, match=r"has a separator of documents among its tokens(.|\n)*row +2\b"):
        tokens_of(order)
