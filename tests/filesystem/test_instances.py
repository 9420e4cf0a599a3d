"""Filesystems as objects: their options, their copies in other threads, processes and machines, what they show."""

import concurrent.futures
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import fsspec
import pytest
from filesystem_kit import BLOCK, CONTENTS, KEY, LARGE, Made

from oarbank_cas import InvalidInputError, UnsupportedError
from oarbank_cas.backends.s3.options import S3Options
from oarbank_cas.filesystem import StoreFileSystem
from oarbank_cas.filesystem.options import StoreOptions

PATH = f"result/{KEY}/out/a.txt"
BIG = f"result/{KEY}/out/deep/b.bin"
URL = f"oarbank-cas://{PATH}"


def test_fsspec_finds_it_by_its_entry_point():
    """In a process in which nothing of the package was imported."""
    ran = subprocess.run(
        [sys.executable, "-c", "import fsspec, sys; print('oarbank_cas' in sys.modules, "
         "fsspec.get_filesystem_class('oarbank-cas').__name__, 'boto3' in sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout == "False StoreFileSystem False\n"


def test_the_package_and_its_command_import_no_fsspec():
    program = (
        "import sys, oarbank_cas\nfrom oarbank_cas import Store\nfrom oarbank_cas.cli import main\n"
        "sys.argv = ['oarbank-cas', 'stat', '0' * 64]\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] == 'fsspec'))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"


def test_one_instance_for_the_same_options_and_others_for_others(made, tmp_path):
    one = fsspec.filesystem("oarbank-cas", store=made.url)
    assert fsspec.filesystem("oarbank-cas", store=made.url) is one
    assert fsspec.core.url_to_fs(URL, store=made.url) == (one, PATH)
    for more in ({"result_class": "linux"}, {"complete": False}, {"cache": str(tmp_path / "c")}, {"read_only": True}):
        assert fsspec.filesystem("oarbank-cas", store=made.url, **more) is not one
    other = Made(tmp_path / "other")
    assert fsspec.filesystem("oarbank-cas", store=other.url) != one


def test_the_store_that_settings_name(made, tmp_path, monkeypatch):
    other = Made(tmp_path / "other")
    other.invalidate(KEY)
    other.publish(KEY, {"out/a.txt": b"another store's"})

    def read():
        with fsspec.open(URL) as file:
            return file.read()

    monkeypatch.setenv("OARBANK_CAS_STORE", made.url)
    assert read() == b"alpha"
    monkeypatch.setenv("OARBANK_CAS_STORE", other.url)  # which the instance that fsspec kept must not miss
    assert read() == b"another store's"
    monkeypatch.delenv("OARBANK_CAS_STORE")
    Path("oarbank-cas.toml").write_text(f"store = {json.dumps(made.url)}")
    assert read() == b"alpha"
    Path("named.toml").write_text(f"store = {json.dumps(other.url)}")
    with fsspec.open(URL, config="named.toml") as file:
        assert file.read() == b"another store's"
    os.unlink("oarbank-cas.toml")
    os.symlink(made.url, ".oarbank-cas")
    assert read() == b"alpha"


def test_the_cache_that_settings_name(made, tmp_path, monkeypatch):
    monkeypatch.setenv("OARBANK_CAS_CACHE", str(tmp_path / "cache"))
    fs = fsspec.filesystem("oarbank-cas", store=made.url)
    assert fs.store.cache.folder.where == str(tmp_path / "cache")
    fs.cat_file(BIG, 1, 2)
    assert list(Path(tmp_path, "cache", "blobs").glob(f"*/{fs.ukey(BIG)}"))
    assert fsspec.filesystem("oarbank-cas", store=made.url, cache="").store.cache is None


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"stroe": "x"}, InvalidInputError, "storage option stroe: is unknown"),
        ({"key": "AKIA", "secret": "hush"}, InvalidInputError, "key: is unknown; a credential belongs in AWS's own"),
        ({"store": "s3://user:hush@bucket/x"}, InvalidInputError, "holds a credential"),
        ({"store": "ftp://user:hush@host/x"}, UnsupportedError, "ftp://host/x"),
        ({"store": ""}, InvalidInputError, "no path of a directory"),
        ({"store": "s3://b"}, InvalidInputError, "names no bucket"),
        ({"s3": {"secret_key": "hush"}}, InvalidInputError, "secret_key.*credentials belong in AWS"),
        ({"s3": {"endpoint_url": "http://me:hush@host"}}, InvalidInputError, "holds a credential"),
        ({"result_class": "Linux!"}, InvalidInputError, "result_class"),
        ({"fo": "x", "target_protocol": "ftp"}, UnsupportedError, "ftp:// holds no store"),
        ({"fo": "x", "target_protocol": "file", "store": "y"}, InvalidInputError, "one too many"),
    ],
)
def test_wrong_options(options, error, why):
    with pytest.raises(error, match=why) as caught:
        StoreFileSystem(**options)
    assert "hush" not in str(caught.value)
    assert StoreFileSystem._cache == {}


def test_what_is_shown_holds_no_secret(made, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    shown = StoreFileSystem("s3://bucket/prefix/", s3={"endpoint_url": "http://127.0.0.1:9"})
    assert repr(shown) == "<StoreFileSystem over s3://bucket/prefix>"
    assert repr(StoreFileSystem()) == "<StoreFileSystem over the store that settings name>"
    for text in (repr(shown), str(shown), shown.to_json(), repr(pickle.dumps(shown)), repr(vars(shown))):
        assert "hush" not in text
    assert repr(StoreFileSystem(made.url)) == f"<StoreFileSystem over {made.url}>"


def test_pickled(made, tmp_path, monkeypatch):
    fs = fsspec.filesystem("oarbank-cas", store=made.url, result_class="any")
    assert pickle.loads(pickle.dumps(fs)) == fs
    monkeypatch.setenv("OARBANK_CAS_STORE", made.url)
    named = pickle.dumps(fsspec.filesystem("oarbank-cas"))
    monkeypatch.setenv("OARBANK_CAS_STORE", str(tmp_path / "elsewhere"))
    assert pickle.loads(named).cat_file(PATH) == b"alpha"
    assert pickle.loads(pickle.dumps(StoreFileSystem(made.url))).cat_file(PATH) == b"alpha"
    Path("oarbank-cas.toml").write_text('[s3]\nendpoint_url = "http://127.0.0.1:9"\nregion = "x"')
    bucket = pickle.dumps(StoreFileSystem("s3://bucket/prefix"))
    os.unlink("oarbank-cas.toml")
    there = pickle.loads(bucket)
    assert there._options.s3 == S3Options(endpoint_url="http://127.0.0.1:9", region="x")
    same = StoreFileSystem(store="s3://bucket/prefix", s3={"region": "x"})
    assert pickle.loads(pickle.dumps(same)) == same


def test_a_pickled_file_is_the_same_bytes_at_the_same_place(made, fs):
    with fs.open(BIG, block_size=BLOCK, cache_type="blockcache") as file:
        file.seek(BLOCK + 3)
        pickled = pickle.dumps(file)
        made.invalidate(KEY)
        made.publish(KEY, {"out/deep/b.bin": LARGE[::-1]})
        with pickle.loads(pickled) as again:
            assert (again.tell(), again.path, again.blocksize) == (BLOCK + 3, BIG, BLOCK)
            assert again.read() == file.read() == LARGE[BLOCK + 3 :]


def test_sent_to_processes_that_start_afresh(fs):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(fs.cat_file, [PATH, BIG]) == [b"alpha", LARGE]


FORKED = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
import fsspec
url, cache, base = sys.argv[1:4]
fs = fsspec.filesystem("oarbank-cas", store=url, cache=cache or None)
file = fs.open(f"{base}/deep/b.bin", block_size=65536, cache_type="none")
first = file.read(10)
parents = fs.store
pid = os.fork()
if not pid:
    assert fs.store is not parents
    ours = [fs.cat_file(f"{base}/a.txt"), first + file.read(), fs.cat_file(f"{base}/deep/b.bin", 5, 9)]
    again = fsspec.filesystem("oarbank-cas", store=url, cache=cache or None).cat_file(f"{base}/a.txt")
    assert ours[0] == again == b"alpha"
    assert ours[1][5:9] == ours[2]
    sys.exit(0 if len(ours[1]) == file.size else 9)  # finalizers run, and must leave the parent's alone
assert os.waitpid(pid, 0)[1] == 0
fs.store.put_bytes(b"the parent's store is as it was")
assert fs.store is parents
assert len(first + file.read()) == file.size
assert fs.cat_file(f"{base}/a.txt") == b"alpha"
print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
@pytest.mark.parametrize("cached", [False, True])
def test_after_a_fork(made, tmp_path, cached):
    cache = str(tmp_path / "cache") if cached else ""
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKED), made.url, cache, f"result/{KEY}/out"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (ran.stdout, ran.stderr) == ("fine\n", "")
    assert [name for name in os.listdir(f"{made.url}/tmp") if name != "locks"] == []


CHILD_ENDS = """
import os, sys, warnings
warnings.simplefilter("ignore")
import fsspec
url, path = sys.argv[1:3]
fs = fsspec.filesystem("oarbank-cas", store=url)
fs.cat_file(path)
pid = os.fork()
if not pid:
    sys.exit(0)  # with all finalizers, and the parent's store in its hands
assert os.waitpid(pid, 0)[1] == 0
print([name for folder, _, names in os.walk(f"{url}/gc") for name in names], flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_child_leaves_the_parents_store_alone(made):
    """It would write, over the parent's connections, that the parent has read a result."""
    shutil.rmtree(f"{made.url}/gc")
    ran = subprocess.run([sys.executable, "-c", CHILD_ENDS, made.url, PATH], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("[]\n", "")
    assert [names for _, _, names in os.walk(f"{made.url}/gc") if names]  # the parent did, at its end


def test_two_threads_that_open_the_store_at_once_share_one(made, monkeypatch):
    both = threading.Barrier(2, timeout=20)
    opened = []
    real = StoreOptions.open

    def opening(self, url):
        store = real(self, url)
        closing = store.backend.close
        store.backend.close = lambda: (opened.remove(store), closing())
        opened.append(store)
        both.wait()
        return store

    monkeypatch.setattr(StoreOptions, "open", opening)
    fs = StoreFileSystem(made.url)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: fs.store, range(2))
    assert one is other
    assert opened == [one]


def test_many_threads_open_one_store(made, monkeypatch):
    """One instance, which all threads ask at the same moment."""
    fs = StoreFileSystem(made.url)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        stores = list(pool.map(lambda _: fs.store, range(64)))
        assert set(map(id, stores)) == {id(fs.store)}
        paths = sorted(CONTENTS) * 20
        found = list(pool.map(lambda path: fs.cat_file(f"result/{KEY}/{path}"), paths))
    assert found == [CONTENTS[path] for path in paths]


def test_threads_that_ask_fsspec_each_for_its_own(made):
    def read(path):
        with fsspec.open(f"oarbank-cas://result/{KEY}/{path}", store=made.url) as file:
            return file.read()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        paths = sorted(CONTENTS) * 10
        assert list(pool.map(read, paths)) == [CONTENTS[path] for path in paths]


def test_an_instance_that_is_let_go_closes_its_store(made):
    fs = StoreFileSystem(made.url)
    closed = []
    store = fs.store
    real = store.backend.close
    store.backend.close = lambda: (closed.append(True), real())
    del fs
    StoreFileSystem.clear_instance_cache()
    assert closed == [True]
