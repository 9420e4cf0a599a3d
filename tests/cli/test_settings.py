import os
from pathlib import Path

import pytest
from agent_kit import digest, key, tree, write_files

from oarbank_cas import Store, settings


@pytest.fixture
def stores(tmp_path):
    """Stores that can be told by a blob of their own, each the digest of its name."""
    for name in ("option", "variable", "here", "named", "user", "default"):
        with Store.init(tmp_path / "stores" / name)[0] as store:
            store.put_bytes(name.encode())
    return tmp_path / "stores"


@pytest.fixture
def used(run, stores):
    """Which of the stores a command uses."""

    def call(*arguments):
        ran = run(*arguments, "--json", "ls", "blobs")
        assert ran.code == 0, ran
        (blob,) = ran.json["blobs"]
        return next(name for name in os.listdir(stores) if digest(name.encode()) == blob["digest"])

    return call


def test_precedence(used, stores, tmp_path, monkeypatch):
    """Each place counts only where those before it say nothing."""
    (stores / "default").rename(".oarbank-cas")
    Path(stores / "default").symlink_to(Path(".oarbank-cas").resolve())
    assert used() == "default"
    write_files(tmp_path / "home/.config/oarbank-cas", {"oarbank-cas.toml": f'store = "{stores}/user"\n'.encode()})
    assert used() == "user"
    Path("oarbank-cas.toml").write_text(f"store = '{stores}/here'")
    assert used() == "here"
    write_files(tmp_path, {"named.toml": f"store = '{stores}/named'".encode()})
    assert used("--config", tmp_path / "named.toml") == "named"
    monkeypatch.setenv("OARBANK_CAS_STORE", f"{stores}/variable")
    assert used("--config", tmp_path / "named.toml") == "variable"
    assert used("--config", tmp_path / "named.toml", "--store", stores / "option") == "option"
    assert used("--store", (stores / "option").as_uri()) == "option"
    monkeypatch.setenv("OARBANK_CAS_STORE", "")
    assert used() == "here"


def test_the_users_folder_as_the_environment_says(used, stores, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    write_files(tmp_path / "xdg/oarbank-cas", {"oarbank-cas.toml": f'store = "{stores}/user"\n'.encode()})
    assert used() == "user"


def test_a_relative_store_is_relative_to_the_file(used, stores, tmp_path, monkeypatch):
    write_files(stores, {"conf/here.toml": b'store = "../here"'})
    assert used("--config", stores / "conf/here.toml") == "here"
    assert used("--config", os.path.relpath(stores / "conf/here.toml")) == "here"
    monkeypatch.setenv("HOME", str(stores))
    write_files(stores, {"conf/tilde.toml": b'store = "~/user"'})
    assert used("--config", stores / "conf/tilde.toml") == "user"
    write_files(stores, {"conf/url.toml": f'store = "{(stores / "named").as_uri()}"'.encode()})
    assert used("--config", stores / "conf/url.toml") == "named"


def test_a_file_that_says_nothing(used, stores):
    (stores / "default").rename(".oarbank-cas")
    (stores / "default").symlink_to(Path(".oarbank-cas").resolve())
    for text in ("", "# nothing\r\n"):
        Path("oarbank-cas.toml").write_text(text)
        assert used() == "default"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"store = ", "is not TOML"),
        (b"store", "is not TOML"),
        (b"store = 'a'\nstore = 'b'", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        ("store = 'x'".encode("utf-16"), "is not TOML"),
        (b"store = " + b"9" * 5000, "is not TOML"),
        (b"store = 7", "`store` must be a URL or a path"),
        (b"store = ''", "`store` must be a URL or a path"),
        (b"store = ['x']", "`store` must be a URL or a path"),
        (b"[store]\nurl = 'x'", "`store` must be a URL or a path"),
        (b"stoer = 'x'", "sets `stoer`, which is unknown; known: cache, cache_bytes, s3, store"),
        (b'store = "a\\u0000b"', "is no path"),
        (b"a = " + b"[" * 5000, "nested too deeply"),
        (b"#" * (16 * 1024 + 1), "more than"),
    ],
)
def test_a_malformed_file(run, data, message):
    Path("oarbank-cas.toml").write_bytes(data)
    for arguments in (("ls",), ("--config", "oarbank-cas.toml", "ls")):
        ran = run(*arguments)
        assert ran.code == 65
        assert message in ran.said
        assert "oarbank-cas.toml" in ran.said or message == "is no path"


def test_a_file_that_is_missing_or_a_folder(run):
    ran = run("--config", "none.toml", "ls")
    assert (ran.code, ran.said) == (65, "oarbank-cas: none.toml: is missing\n")
    Path("oarbank-cas.toml").mkdir()
    ran = run("ls")
    assert ran.code == 65
    assert "oarbank-cas.toml: cannot be read" in ran.said
    assert "--store" in ran.said


def test_a_home_that_is_none(run, monkeypatch):
    for home in ("/dev/null", "/nonexistent"):
        monkeypatch.setenv("HOME", home)
        ran = run("ls")
        assert ran.code == 69
        assert "there is no store at" in ran.said
        assert "oarbank-cas init" in ran.said


def test_commands_without_a_store_do_not_read_the_file(run):
    Path("oarbank-cas.toml").write_bytes(b"broken")
    assert run("schema").code == 0
    assert run("key", "--module", "a.b", "--compat", "1", "-", stdin=b"{}").code == 0


COMMANDS = (
    ("put", "file"),
    ("put", "-"),
    ("get", digest(b"x")),
    ("get", digest(b"x"), "-o", "back"),
    ("stat", digest(b"x")),
    ("ls",),
    ("ls", "blobs"),
    ("publish", "--job-key", key(), "--workdir", "w"),
    ("publish", "--upload-only", "--workdir", "w", "--out", "out.json"),
    ("record", "--job-key", key(), "w/result.json"),
    ("lookup", key()),
    ("lookup", key(), key(1)),
    ("stage", "spec.json", "--workdir", "w"),
    ("fetch", key(), "-o", "folder"),
    ("fetch", f"art:{digest(b'x')}"),
    ("invalidate", key(), "--reason", "x"),
    ("invalidate", key(), "--undo"),
    ("invalidate", "--host", "x", "--reason", "x"),
)


@pytest.mark.parametrize("where", ["default", "missing", "empty", "file"])
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_nothing_but_init_makes_a_store(run, tmp_path, arguments, where):
    write_files(".", {"file": b"f", "w/result.json": b"{}", "spec.json": b"{}"})
    options = {
        "default": (),
        "missing": ("--store", tmp_path / "no/store"),
        "empty": ("--store", "empty"),
        "file": ("--store", "file"),
    }[where]
    if where == "empty":
        Path("empty").mkdir()
    before = tree(tmp_path)
    ran = run(*options, *arguments)
    assert ran.code == 69, ran
    assert "there is no store at" in ran.said
    assert ran.out == b""
    assert tree(tmp_path) == before


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_reading_commands_leave_a_store_as_it_is(run, store, arguments):
    write_files(".", {"w/result.json": b"{}", "spec.json": b"{}", "file": b""})
    before = tree(store)
    if arguments[0] == "put":
        return
    run(*arguments)
    # Lock files are left for the next one.
    after = {path: what for path, what in tree(store).items() if not path.startswith("tmp")}
    assert after == {path: what for path, what in before.items() if not path.startswith("tmp")}


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("gs://bucket/prefix", 69, "opens directories"),
        ("https://example.org", 69, "opens directories"),
        ("weird:path", 69, "./weird:path"),
        ("file://host/path", 65, "file:///path"),
        ("file:relative", 65, "file:///path"),
        ("file:///a?b", 65, "%3F"),
        ("file:///a#b", 65, "%23"),
        ("file:///a%00b", 65, "file:///path"),
        ("file:", 65, "file:///path"),
    ],
)
def test_urls_that_name_no_directory(run, url, code, message):
    for command in (("ls",), ("init",)):
        ran = run("--store", url, *command)
        assert ran.code == code
        assert message in ran.said
        assert url in ran.said
    assert tree(".") == {}


def test_a_store_with_odd_characters_in_its_path(run, tmp_path):
    place = tmp_path / "a b#c?d%20\u00e9'\"\n"
    for url in (place, place.as_uri()):
        assert run("--store", url, "init").code == 0
        assert run("--store", url, "--json", "ls").json == {"entries": []}
    assert (place / "oarbank-cas.json").exists()


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (b"{}", 65, "restore it from a backup"),
        (b"", 65, "restore it from a backup"),
        (b"\xff", 65, "restore it from a backup"),
        (b'{"format": 2}', 69, "use a newer oarbank-cas"),
        (b'{"format": 1}', 65, "`id` is missing"),
        (b'{"format": true}', 65, "restore it from a backup"),
        (b"[" * 60_000, 65, "restore it from a backup"),
        (b" " * (64 * 1024 + 1), 65, "at most"),
    ],
)
def test_a_descriptor_that_is_none(run, store, text, code, message):
    (store / "oarbank-cas.json").chmod(0o644)
    (store / "oarbank-cas.json").write_bytes(text)
    ran = run("lookup", key())
    assert ran.code == code
    assert message in ran.said


def test_the_limit_itself_is_allowed(monkeypatch):
    monkeypatch.setattr(settings, "_MAX_BYTES", 10)
    Path("oarbank-cas.toml").write_bytes(b"# 34567890")
    assert settings.read(None).store is None
