"""What paths name, and what is said of it."""

import os
import shutil

import fsspec
import pytest
from agent_kit import canonical, dataset_of, digest, key, raw_dataset
from filesystem_kit import CONTENTS, KEY, LARGE, STAGED

from oarbank_cas import CorruptError, Origin, Store, UnavailableError, UnsupportedError
from oarbank_cas.contracts.keys import parse_key

OUT = {path.removeprefix("out/"): data for path, data in CONTENTS.items() if path.startswith("out/")}


def bases(made):
    """The ways to name the artifact `out`."""
    dataset = made.datasets["out"]
    return [
        f"dataset/{dataset.removeprefix('art:')}",
        f"dataset/{dataset}",
        f"result/{KEY}/out",
        f"result/{KEY}@any/out",
        f"result/{STAGED}/out",
        f"oarbank-cas://result/{KEY}/out/",
    ]


def test_every_way_to_name_a_file(fs, made):
    for base in bases(made):
        for path, data in OUT.items():
            shown = f"{base.removeprefix('oarbank-cas://').rstrip('/')}/{path}"
            asked = f"{base.rstrip('/')}/{path}"
            assert fs.info(asked) == {"name": shown, "size": len(data), "type": "file", "sha256": digest(data)}
            assert fs.cat_file(asked) == data
            assert fs.ukey(asked) == fs.checksum(asked) == digest(data)
            assert (fs.exists(asked), fs.isfile(asked), fs.isdir(asked), fs.size(asked)) == (
                True, True, False, len(data),
            )  # fmt: skip
            assert fs.ls(asked, detail=False) == [shown]
    assert fs.cat_file(f"blob/{digest(LARGE)}") == LARGE
    assert fs.info(f"blob/{digest(LARGE)}")["sha256"] == digest(LARGE)


def test_folders(fs, made):
    assert fs.ls("", detail=False) == ["blob", "dataset", "result"]
    assert fs.ls(f"result/{KEY}") == [
        {"name": f"result/{KEY}/{name}", "size": 0, "type": "directory", "dataset": made.datasets[name]}
        for name in ("log", "out")
    ]
    base = f"result/{KEY}/out"
    assert fs.ls(base, detail=False) == [f"{base}/{name}" for name in ("a.txt", "deep", "deep0", "empty")]
    assert fs.ls(f"{base}/deep", detail=False) == [f"{base}/deep/b.bin", f"{base}/deep/er"]
    assert fs.info(base) == {"name": base, "size": 0, "type": "directory", "dataset": made.datasets["out"]}
    assert fs.info(f"{base}/deep") == {"name": f"{base}/deep", "size": 0, "type": "directory"}
    assert (fs.isdir(base), fs.isfile(base), fs.exists(base)) == (True, False, True)
    assert fs.ukey(base) == made.datasets["out"].removeprefix("art:")
    assert fs.ukey(f"result/{KEY}") != fs.ukey(f"{base}/deep")
    with pytest.raises(IsADirectoryError):
        fs.cat_file(base)
    with pytest.raises(IsADirectoryError):
        fs.open(f"{base}/deep")


def test_all_that_is_below(fs):
    everything = sorted(f"result/{KEY}/{path}" for path in CONTENTS)
    assert fs.find(f"result/{KEY}") == everything
    assert fs.find(f"result/{KEY}/log/run.log") == [f"result/{KEY}/log/run.log"]
    detailed = fs.find(f"result/{KEY}", detail=True)
    assert {name: info["sha256"] for name, info in detailed.items()} == {
        f"result/{KEY}/{path}": digest(data) for path, data in CONTENTS.items()
    }
    base = f"result/{KEY}/out"
    assert fs.find(base, maxdepth=1) == [f"{base}/{name}" for name in ("a.txt", "deep0", "empty")]
    assert fs.find(base, maxdepth=2, withdirs=True) == sorted(
        [base, *(f"{base}/{name}" for name in ("a.txt", "deep", "deep/b.bin", "deep/er", "deep0", "empty"))]
    )
    assert fs.glob(f"{base}/*.txt") == [f"{base}/a.txt"]
    assert fs.glob(f"{base}/**/c@*") == [f"{base}/deep/er/c@1.5+x-y_z"]
    assert fs.glob(f"result/{KEY}/*/*.log") == [f"result/{KEY}/log/run.log"]
    assert [name for name, _, _ in fs.walk(base)] == [base, f"{base}/deep", f"{base}/deep/er"]
    assert fs.du(base) == sum(map(len, OUT.values()))
    assert fs.du(base, total=False)[f"{base}/a.txt"] == 5
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="maxdepth"):
            fs.find(base, maxdepth=wrong)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nothing", "paths begin with blob, dataset, result"),
        ("etc/passwd", "paths begin with"),
        ("../etc/passwd", "paths begin with"),
        ("dataset/../blob", "no digest"),
        ("dataset//x", "no digest"),
        ("dataset/art:/x", "no digest"),
        (f"dataset/art:art:{'0' * 64}", "no digest"),
        (f"dataset/{'A' * 64}/x", "no digest"),
        (f"dataset/{'0' * 64}/x", "is not in the store"),
        (f"blob/{'0' * 64}", "is not in the store"),
        ("blob/../../oarbank-cas.json", "is a file, and has nothing in it"),
        (f"blob/{digest(LARGE)}/x", "is a file, and has nothing in it"),
        (f"result/{KEY}/out/../log/run.log", "has no file or folder"),
        (f"result/{KEY}/out/./a.txt", "has no file or folder"),
        (f"result/{KEY}/out//a.txt", "has no file or folder"),
        (f"result/{KEY}/out/a.txt/x", "has no file or folder"),
        (f"result/{KEY}/out/A.TXT", "has no file or folder"),
        (f"result/{KEY}/out/de", "has no file or folder"),
        (f"result/{KEY}/out/\0", "has no file or folder"),
        (f"result/{KEY}/../{KEY}/out", "has no artifact '..'; it has log, out"),
        (f"result/{KEY}/plots/x", "has no artifact 'plots'; it has log, out"),
        (f"result/{KEY}:other/out/a.txt", "miss (absent)"),
        (f"result/{KEY}:/out/a.txt", "no job key"),
        (f"result/{KEY}%3Aalign/out/a.txt", "no job key"),
        (f"result/{KEY}@linux/out/a.txt", "in class linux: miss (absent)"),
        (f"result/{KEY}@/out/a.txt", "no result class"),
        (f"result/{KEY}@../out/a.txt", "no result class"),
        (f"result/{KEY.upper()}/out", "no job key"),
        (f"result/{key(9)}/out/a.txt", "miss (absent): no result is recorded"),
        (f"result/{KEY}/out/" + "x" * 100_000, "has no file or folder"),
    ],
)
def test_nothing_is_there(fs, path, why):
    def tells(call):
        with pytest.raises(FileNotFoundError) as caught:
            call(path)
        assert why in str(caught.value)
        assert caught.value.filename == path.strip("/")

    for call in (fs.info, fs.ls, fs.find, fs.open, fs.cat_file, fs.ukey):
        tells(call)
    assert (fs.exists(path), fs.isfile(path), fs.isdir(path)) == (False, False, False)


def test_a_class_is_chosen_as_by_lookup(made, fs):
    on = [Origin(by="t", platform=f"{system}-amd64") for system in ("linux", "darwin")]
    made.publish(key(5), {"out/who": b"linux"}, "linux", on[0])
    made.publish(key(5), {"out/who": b"darwin"}, "darwin-amd64", on[1])
    assert not fs.exists(f"result/{key(5)}/out/who")  # none falls back to another
    assert fs.cat_file(f"result/{key(5)}@linux/out/who") == b"linux"
    assert fs.cat_file(f"result/{key(5)}@darwin-amd64/out/who") == b"darwin"
    other = fsspec.filesystem("oarbank-cas", store=made.url, result_class="darwin-amd64")
    assert other.cat_file(f"result/{key(5)}/out/who") == b"darwin"
    assert other.cat_file(f"result/{KEY}@any/out/a.txt") == b"alpha"


def test_an_ended_result_is_gone_at_once_and_its_dataset_stays(made, fs):
    base = f"result/{KEY}/out"
    assert fs.cat_file(f"{base}/a.txt") == b"alpha"
    made.invalidate(KEY)
    with pytest.raises(FileNotFoundError, match=r"miss \(invalidated\).*to see"):
        fs.info(f"{base}/a.txt")
    assert fs.cat_file(f"dataset/{made.datasets['out']}/a.txt") == b"alpha"
    made.publish(KEY, {"out/a.txt": b"another"})
    assert fs.cat_file(f"{base}/a.txt") == b"another"


def test_a_result_with_a_file_gone_is_a_miss(made, fs):
    os.unlink(made.blob(b"alpha"))
    for path in ("a.txt", "empty"):
        with pytest.raises(FileNotFoundError, match=r"miss \(incomplete\)"):
            fs.open(f"result/{KEY}/out/{path}")
    lax = fsspec.filesystem("oarbank-cas", store=made.url, complete=False)
    assert lax.cat_file(f"result/{KEY}/out/empty") == b""
    for call in (lax.info, lax.open, lax.cat_file):
        with pytest.raises(FileNotFoundError, match=f"blob {digest(b'alpha')} is not in the store"):
            call(f"result/{KEY}/out/a.txt")
    assert f"result/{KEY}/out/a.txt" in lax.find(f"result/{KEY}")  # the manifest lists it


def test_a_manifest_that_is_gone_or_none(made, fs):
    with Store.open(made.url) as store:
        other = raw_dataset(store, b'{"files": []}')
        climbing = raw_dataset(
            store, canonical({"files": [{"digest": digest(b"alpha"), "path": "../../escaped", "size": 5}]})
        )
    for dataset in (other, climbing, f"art:{digest(b'alpha')}"):
        with pytest.raises(CorruptError, match="cannot be used"):
            fs.ls(f"dataset/{dataset}")
    lax = fsspec.filesystem("oarbank-cas", store=made.url, complete=False)
    shutil.rmtree(f"{made.url}/blobs")
    for call, path in ((lax.ls, "/out"), (lax.find, "/out"), (lax.find, ""), (lax.ukey, "")):
        with pytest.raises(FileNotFoundError, match="is not in the store"):
            call(f"result/{KEY}{path}")


def test_all_of_a_store_is_not_listed(fs):
    for call in (fs.ls, fs.find, fs.du, fs.glob):
        for path in ("blob", "dataset", "result"):
            with pytest.raises(UnsupportedError, match="is not listed: name one"):
                call(f"{path}/*" if call == fs.glob else path)
    with pytest.raises(UnsupportedError):
        fs.find("")


def test_a_large_dataset(made, fs):
    with Store.open(made.url) as store:
        blob = digest(b"alpha")
        listed = [
            {"digest": blob, "path": f"{folder:03d}/{file:03d}", "size": 5}
            for folder in range(200)
            for file in range(500)
        ]
        dataset = raw_dataset(store, canonical({"files": listed}))
    base = f"dataset/{dataset}"
    assert len(fs.find(base)) == 100_000
    assert len(fs.ls(base)) == 200
    assert fs.ls(f"{base}/077", detail=False)[499] == f"{base}/077/499"
    assert fs.cat_file(f"{base}/199/499") == b"alpha"
    assert fs.du(base) == 500_000


def test_a_store_that_is_not_there_or_goes_is_never_an_absent_file(made, tmp_path, fs):
    nowhere = fsspec.filesystem("oarbank-cas", store=str(tmp_path / "nowhere"))
    assert fs.exists(f"result/{KEY}")
    os.rename(made.url, f"{made.url}-away")
    for each in (nowhere, fs):
        for call in (each.info, each.exists, each.isfile, each.isdir, each.ls, each.find, each.open, each.cat_file):
            for path in (f"result/{KEY}/out/a.txt", f"blob/{digest(b'alpha')}", f"dataset/{'0' * 64}/x"):
                with pytest.raises(UnavailableError, match=r"there is no store|is not there"):
                    call(path)
    os.rename(f"{made.url}-away", made.url)
    assert fs.cat_file(f"result/{KEY}/out/a.txt") == b"alpha"


def test_nothing_is_written(fs, made, tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    inside = f"result/{KEY}/out/new"
    blob = f"blob/{digest(b'alpha')}"
    calls = [
        lambda: fs.open(inside, "wb"),
        lambda: fs.open(inside, "ab"),
        lambda: fs.open(inside, "w"),
        lambda: fs.open(blob, "r+b"),
        lambda: fs.pipe(inside, b"x"),
        lambda: fs.put(str(tmp_path / "file"), inside),
        lambda: fs.write_text(inside, "x"),
        lambda: fs.mkdir("result/x"),
        lambda: fs.makedirs("result/x", exist_ok=True),
        lambda: fs.rmdir(f"result/{KEY}"),
        lambda: fs.rm(blob),
        lambda: fs.rm(f"result/{KEY}", recursive=True),
        lambda: fs.rm_file(blob),
        lambda: fs.delete(blob),
        lambda: fs.cp(blob, f"{blob}x"),
        lambda: fs.mv(blob, inside),
        lambda: fs.touch(inside),
    ]
    before = sorted(os.walk(made.url))
    for call in calls:
        with pytest.raises(UnsupportedError, match="is for reading only"):
            call()
    assert fs.cat_file(blob) == b"alpha"
    assert [files for _, _, files in sorted(os.walk(f"{made.url}/blobs"))] == [
        files for folder, _, files in before if folder.startswith(f"{made.url}/blobs")
    ]


def test_reading_a_result_counts_as_a_hit(made, fs):
    fs.cat_file(f"result/{STAGED}/out/a.txt")
    fs.view.close()
    (noted,) = [os.path.join(folder, name) for folder, _, names in os.walk(f"{made.url}/gc/hits") for name in names]
    with open(noted) as file:
        assert f"results/{STAGED[:2]}/{parse_key(STAGED).hex}/align@any\n" in file.readlines()


def test_datasets_that_no_result_names(made, fs):
    with Store.open(made.url) as store:
        dataset = dataset_of(store, {"x/y": b"why"})
    assert fs.cat(f"dataset/{dataset}/x/y") == b"why"
