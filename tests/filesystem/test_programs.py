"""The programs that people read files with, on files of a store."""

import concurrent.futures
import gzip
import io
import os
import zipfile

import fsspec
import pytest
from agent_kit import digest
from filesystem_kit import KEY, LARGE

from oarbank_cas import CorruptError, Store

BASE = f"result/{KEY}/out"
ROWS = 50_000


@pytest.fixture
def pandas():
    return pytest.importorskip("pandas", reason="pandas is not installed")


@pytest.fixture
def pyarrow():
    return pytest.importorskip("pyarrow", reason="pyarrow is not installed")


@pytest.fixture
def table(made, pyarrow):
    """A result with tables: one file in several row groups, a folder of them, the same as text. What they hold."""
    import pyarrow.csv
    import pyarrow.parquet

    table = pyarrow.table({"n": list(range(ROWS)), "name": [f"row {n % 97}" for n in range(ROWS)]})

    def parquet(part):
        out = io.BytesIO()
        pyarrow.parquet.write_table(part, out, row_group_size=5000)
        return out.getvalue()

    text = io.BytesIO()
    pyarrow.csv.write_csv(table, text)
    parts = {f"table/part-{n}.parquet": parquet(table.slice(n * ROWS // 4, ROWS // 4)) for n in range(4)}
    contents = {"one/table.parquet": parquet(table), "csv/table.csv": text.getvalue()} | parts
    made.invalidate(KEY)
    made.publish(KEY, contents)
    made.contents = contents
    return table


def test_pandas(pandas, made, table):
    options = {"store": made.url}
    frame = pandas.read_parquet(f"oarbank-cas://result/{KEY}/one/table.parquet", storage_options=options)
    assert frame["n"].sum() == sum(range(ROWS))
    some = pandas.read_parquet(
        f"oarbank-cas://result/{KEY}/one/table.parquet", columns=["n"], filters=[("n", "<", 10)],
        storage_options=options,
    )  # fmt: skip
    assert list(some["n"]) == list(range(10))
    whole = pandas.read_parquet(f"oarbank-cas://result/{KEY}/table", storage_options=options)
    assert len(whole) == ROWS
    text = pandas.read_csv(f"oarbank-cas://result/{KEY}/csv/table.csv", storage_options=options)
    assert text.equals(frame.astype(text.dtypes))
    with Store.open(made.url) as store:
        dataset = store.lookup(KEY).datasets["one"]
    again = pandas.read_parquet(f"oarbank-cas://dataset/{dataset}/table.parquet", storage_options=options)
    assert again.equals(frame)
    with pytest.raises(FileNotFoundError, match=r"miss \(absent\)"):
        pandas.read_csv(f"oarbank-cas://result/{KEY}:other/csv/table.csv", storage_options=options)
    with pytest.raises(Exception, match="is for reading only"):
        text.to_csv(f"oarbank-cas://result/{KEY}/csv/other.csv", storage_options=options)


def test_pandas_is_told_of_damage(pandas, made, table):
    data = made.contents["csv/table.csv"]
    made.spoil(data, data.replace(b"row 7", b"row 8"))
    with pytest.raises(CorruptError) as caught:
        pandas.read_csv(f"oarbank-cas://result/{KEY}/csv/table.csv", storage_options={"store": made.url})
    assert caught.value.expected == digest(data)


def test_pyarrow(pyarrow, fs, table):
    import pyarrow.dataset
    import pyarrow.fs
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(f"result/{KEY}/one/table.parquet", filesystem=fs).equals(table)
    found = pyarrow.dataset.dataset(f"result/{KEY}/table", filesystem=fs, format="parquet")
    assert len(found.files) == 4
    assert found.to_table().sort_by("n").equals(table)
    assert found.count_rows(filter=pyarrow.dataset.field("n") >= ROWS - 5) == 5
    arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    kinds = arrow.get_file_info([f"result/{KEY}/table", f"result/{KEY}/one/table.parquet", f"result/{KEY}:no/x"])
    assert [info.type for info in kinds] == [
        pyarrow.fs.FileType.Directory, pyarrow.fs.FileType.File, pyarrow.fs.FileType.NotFound,
    ]  # fmt: skip
    with arrow.open_input_file(f"result/{KEY}/one/table.parquet") as file:
        assert file.read_at(4, 0) == b"PAR1"
    with pytest.raises(Exception, match="is for reading only"):
        pyarrow.parquet.write_table(table, f"result/{KEY}/one/x.parquet", filesystem=fs)


def test_pyarrow_reads_from_many_threads(pyarrow, fs, table):
    import pyarrow.parquet

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        tables = pool.map(
            lambda n: pyarrow.parquet.read_table(f"result/{KEY}/table/part-{n % 4}.parquet", filesystem=fs), range(24)
        )
        assert sum(len(each) for each in tables) == 6 * ROWS


def test_only_what_is_needed_of_a_parquet_file_is_read(fs, pyarrow, table, monkeypatch):
    import pyarrow.parquet

    path = f"result/{KEY}/one/table.parquet"
    read = []
    blobs = fs.store.blobs
    real = blobs.read_range
    monkeypatch.setattr(blobs, "read_range", lambda d, s, n: read.append(n) or real(d, s, n))
    with fs.open(path, block_size=4096, cache_type="none") as file:
        found = pyarrow.parquet.ParquetFile(file).read_row_group(3, columns=["name"])
    assert found.column("name").to_pylist() == [f"row {n % 97}" for n in range(15_000, 20_000)]
    assert 0 < sum(read) < fs.size(path) / 2


# -- fsspec's own

CACHES = ("simplecache", "filecache", "blockcache")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # blockcache leaves a file open
@pytest.mark.parametrize("kind", CACHES)
def test_fsspecs_caches_before_it(made, tmp_path, kind):
    options = {"oarbank-cas": {"store": made.url}, kind: {"cache_storage": str(tmp_path / "cache")}}
    for _ in range(2):
        with fsspec.open(f"{kind}::oarbank-cas://{BASE}/deep/b.bin", **options) as file:
            assert file.read() == LARGE
    assert os.listdir(tmp_path / "cache")


def test_fsspecs_cache_notices_that_a_result_has_become_another(made, tmp_path):
    options = {
        "oarbank-cas": {"store": made.url},
        "filecache": {"cache_storage": str(tmp_path / "cache"), "check_files": True},
    }
    url = f"filecache::oarbank-cas://{BASE}/a.txt"
    with fsspec.open(url, **options) as file:
        assert file.read() == b"alpha"
    made.invalidate(KEY)
    made.publish(KEY, {"out/a.txt": b"omega"})  # as long as what was there
    with fsspec.open(url, **options) as file:
        assert file.read() == b"omega"


def test_fsspecs_cache_keeps_no_wrong_bytes(made, tmp_path):
    made.spoil(LARGE, b"x" + LARGE[1:])
    options = {"oarbank-cas": {"store": made.url}, "simplecache": {"cache_storage": str(tmp_path / "cache")}}
    for error in (CorruptError, FileNotFoundError):  # then it is set aside
        with (
            pytest.raises(error),
            fsspec.open(f"simplecache::oarbank-cas://{BASE}/deep/b.bin", **options) as file,
        ):
            file.read()
    assert [name for name in os.listdir(tmp_path / "cache") if name != "cache"] == []


def test_a_store_that_is_chained(made):
    with fsspec.open(f"oarbank-cas://{BASE}/a.txt::file://{made.url}") as file:
        assert file.read() == b"alpha"
    with fsspec.open(f"simplecache::oarbank-cas://{BASE}/a.txt::file://{made.url}") as file:
        assert file.read() == b"alpha"


def test_an_archive_in_a_store(made):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("inner/x.txt", "in an archive")
    with Store.open(made.url) as store:
        blob = store.put_bytes(packed.getvalue()).digest
        pressed = store.put_bytes(gzip.compress(b"pressed")).digest
    options = {"oarbank-cas": {"store": made.url}}
    with fsspec.open(f"zip://inner/x.txt::oarbank-cas://blob/{blob}", **options) as file:
        assert file.read() == b"in an archive"
    with fsspec.open(f"oarbank-cas://blob/{pressed}", compression="gzip", store=made.url) as file:
        assert file.read() == b"pressed"
    mapper = fsspec.filesystem("oarbank-cas", store=made.url).get_mapper(BASE)
    assert mapper["a.txt"] == b"alpha"
    assert "nothing" not in mapper
    assert sorted(mapper) == ["a.txt", "deep/b.bin", "deep/er/c@1.5+x-y_z", "deep0", "empty"]
    with pytest.raises(KeyError):
        mapper["nothing"]
