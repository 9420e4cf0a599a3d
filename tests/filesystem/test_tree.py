"""The files of an artifact as folders, against a plain model."""

import hypothesis.strategies as st
from hypothesis import given

from oarbank_cas.contracts.manifest import FileRef
from oarbank_cas.filesystem.tree import FileTree

# What sorts around the slash: a folder's files stand together in the list, and others just before and after.
NAMES = st.sampled_from(["a", "b", "a-", "a.b", "a0", "a+", "aa", "A", "a@"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


def apart(paths):
    """Without those that are a folder of another."""
    return sorted(path for path in paths if not any(other.startswith(f"{path}/") for other in paths))


@given(st.sets(PATHS, min_size=1).map(apart), PATHS)
def test_what_stands_where(paths, asked):
    files = [FileRef(path, "0" * 64, number) for number, path in enumerate(paths)]
    tree = FileTree(files)
    folders = {path.rsplit("/", up)[0] for path in paths for up in range(1, path.count("/") + 1)}
    for path in [asked, *paths, *folders]:
        assert tree.file(path) == next((file for file in files if file.path == path), None)
        assert tree.has_folder(path) == (path in folders)
    for folder in ["", *folders]:
        prefix = f"{folder}/" if folder else ""
        below = [path[len(prefix) :] for path in paths if path.startswith(prefix)]
        found = list(tree.children(folder))
        assert [name for name, _ in found] == list(dict.fromkeys(path.partition("/")[0] for path in below))
        for name, file in found:
            assert file == tree.file(prefix + name)
            assert (file is None) == tree.has_folder(prefix + name)
    assert tree.has_folder("")
    assert asked in folders or list(tree.children(asked)) == []
