"""Files placed below a directory: a whole tree at once or not at all, never through a symbolic link."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from typing import TypeAlias

from oarbank_cas import stopping
from oarbank_cas.agent.workdir import Folder, kind_of
from oarbank_cas.batches import in_order
from oarbank_cas.blobs import check_replaceable
from oarbank_cas.contracts.manifest import FileRef
from oarbank_cas.errors import ConflictError, CorruptError, NotFoundError, StorageIOError

Bring: TypeAlias = Callable[[Folder, str, FileRef, int], None]
"""Makes a new file in a folder, with a file's verified bytes: the folder, the name in it, the file, the mode."""

READ_ONLY = 0o444
ORDINARY = 0o666

_PARTIAL = ".oarbank-cas-"
_TASK_FILES = 64
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CREATE = (
    os.O_RDWR
    | os.O_CREAT
    | os.O_EXCL
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
)


def place_tree(root: Folder, mount: str, files: Sequence[FileRef], bring: Bring, at_once: int = 1) -> bool:
    """Place a tree of read-only files at `mount` below `root`; whole, or nothing of it.

    Args:
        root: the work directory.
        mount: a portable path.
        files: what is to stand there; their paths are checked and do not clash.
        bring: makes each of them.
        at_once: of them best made at once.

    Returns:
        False where exactly these files stood there already.

    Raises:
        ConflictError: something else stands there, or the tree cannot be created.
        InvalidInputError: a symbolic link, or a file, stands in the way.
    """
    *above, name = mount.split("/")
    with root.walk(above, make=True) as parent:
        found = parent.lstat(name)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            raise ConflictError(f"{mount}: {kind_of(found.st_mode)} stands at the mount; remove it")
        if found is not None:
            with parent.enter(name) as standing:
                if standing.names():
                    _check_same(standing, files, mount)
                    return False
        partial = _PARTIAL + secrets.token_hex(8)
        placed = False
        try:
            with parent.make(partial) as tree:
                _fill(tree, files, bring, READ_ONLY, at_once)
            placed = _into_place(parent, partial, name, mount, files)
        finally:
            if not placed:
                shutil.rmtree(parent.at(partial), ignore_errors=True, dir_fd=parent.fd)
    return placed


def _into_place(parent: Folder, partial: str, name: str, mount: str, files: Sequence[FileRef]) -> bool:
    """Give a filled folder its name; False where another has just placed the same."""
    try:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(parent.at(name), dir_fd=parent.fd)  # an empty folder is no obstacle
        os.rename(parent.at(partial), parent.at(name), src_dir_fd=parent.fd, dst_dir_fd=parent.fd)
    except OSError as error:
        found = parent.lstat(name)
        if found is None or not stat.S_ISDIR(found.st_mode):
            raise ConflictError(f"{mount}: {error.strerror}; something was put there meanwhile: remove it") from error
        with parent.enter(name) as standing:
            _check_same(standing, files, mount)
        return False
    return True


def _fill(tree: Folder, files: Sequence[FileRef], bring: Bring, mode: int, at_once: int) -> None:
    by_folder: dict[str, list[FileRef]] = defaultdict(list)
    for file in files:
        by_folder[file.path.rpartition("/")[0]].append(file)
    task_files = min(_TASK_FILES, len(files) // at_once + 1)
    tasks = [
        (folder, group[start : start + task_files])
        for folder, group in by_folder.items()
        for start in range(0, len(group), task_files)
    ]

    def work(task: tuple[str, Sequence[FileRef]]) -> None:
        folder, group = task
        with tree.walk(folder.split("/") if folder else [], make=True) as inside:
            for file in group:
                stopping.check()
                bring(inside, file.path.rpartition("/")[2], file, mode)

    if len(tasks) == 1 or at_once == 1:
        for task in tasks:
            work(task)
        return
    with stopping.Threads(at_once, "place") as pool:
        stopping.results([pool.submit(work, task) for task in tasks])


def new_file(inside: Folder, name: str, mode: int) -> int:
    """A descriptor, for reading and writing, of a new file in a folder; the caller closes it.

    Raises:
        ConflictError: it cannot be created.
        StorageIOError: there is no room for it.
    """
    try:
        return os.open(inside.at(name), _CREATE, mode, dir_fd=inside.fd)
    except OSError as error:
        label = os.path.join(inside.path, name)
        if error.errno in _FULL:
            raise StorageIOError(f"{label}: {error.strerror}; free some space and run this again") from error
        raise ConflictError(f"cannot create {label}: {error.strerror}") from error


def place_file(root: Folder, path: str, file: FileRef, bring: Bring) -> bool:
    """Place one ordinary file at the portable path `path` below `root`.

    Returns:
        False where it stood there already with the same bytes.

    Raises:
        ConflictError: something else stands there, or it cannot be created.
        InvalidInputError: a symbolic link, or a file, stands in the way.
    """
    *above, name = path.split("/")
    with root.walk(above, make=True) as parent:
        if parent.lstat(name) is not None:
            check_same_file(parent, name, file, path)
            return False
        partial = _PARTIAL + secrets.token_hex(8)
        try:
            bring(parent, partial, file, ORDINARY)
            return _name_new(parent, partial, parent, name, file, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(parent.at(partial), dir_fd=parent.fd)


def place_together(root: Folder, files: Sequence[tuple[str, FileRef]], bring: Bring, at_once: int) -> int:
    """Place ordinary files like `place_file`, the first only when the bytes of all are there; how many were placed.

    Args:
        root: the folder.
        files: the portable path of each below it, and which it is.
        bring: makes each of them.
        at_once: of them best made at once.

    Raises:
        NotFoundError: one is not in the store; nothing is placed then.
        CorruptError: one has another size than it is said to have, or wrong bytes; nothing is placed then.
        ConflictError, InvalidInputError: as `place_file`.
    """
    if not files:
        return 0
    partial = _PARTIAL + secrets.token_hex(8)
    try:
        with root.make(partial) as aside:

            def bring_aside(item: tuple[int, tuple[str, FileRef]]) -> None:
                number, (_, file) = item
                try:
                    bring(aside, str(number), file, ORDINARY)
                except NotFoundError:
                    raise NotFoundError(f"{file.path} is not in the store (blob {file.digest})") from None
                found = aside.lstat(str(number))
                if found is None or found.st_size != file.size:
                    raise CorruptError(f"{file.path} is said to have {file.size} bytes, blob {file.digest} has others")

            for _ in in_order(bring_aside, enumerate(files), at_once):
                pass
            return sum(_place_from(root, aside, str(number), *item) for number, item in enumerate(files))
    finally:
        shutil.rmtree(root.at(partial), ignore_errors=True, dir_fd=root.fd)


def _place_from(root: Folder, aside: Folder, partial: str, path: str, file: FileRef) -> bool:
    *above, name = path.split("/")
    with root.walk(above, make=True) as parent:
        if parent.lstat(name) is not None:
            check_same_file(parent, name, file, path)
            return False
        return _name_new(aside, partial, parent, name, file, path)


def _name_new(source: Folder, partial: str, parent: Folder, name: str, file: FileRef, label: str) -> bool:
    """Give a written file its name, and take no other's place; False where the same was put there meanwhile."""
    try:
        os.link(source.at(partial), parent.at(name), src_dir_fd=source.fd, dst_dir_fd=parent.fd, follow_symlinks=False)
    except FileExistsError:
        check_same_file(parent, name, file, label)
        return False
    except (OSError, NotImplementedError):  # no hard links here: a rename may take the place of what comes just now
        if parent.lstat(name) is not None:
            check_same_file(parent, name, file, label)
            return False
        try:
            os.rename(source.at(partial), parent.at(name), src_dir_fd=source.fd, dst_dir_fd=parent.fd)
        except OSError as error:
            raise ConflictError(f"cannot create {label}: {error.strerror}") from error
    return True


def write_document(path: str, data: bytes) -> None:
    """Write a file of the user's, whole, in the place of what is there.

    Raises:
        ConflictError: it cannot be created.
        StorageIOError: no space is left.
    """
    target = os.path.abspath(path)
    check_replaceable(target)
    partial = os.path.join(os.path.dirname(target), _PARTIAL + secrets.token_hex(8))
    try:
        with open(partial, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
        if error.errno in _FULL:
            raise StorageIOError(f"{path}: {error.strerror}; free some space and run this again") from error
        raise ConflictError(f"cannot create {path}: {error.strerror}") from error


def check_same_file(folder: Folder, name: str, file: FileRef, label: str) -> None:
    """Check that the regular file `name` in `folder` has the bytes of `file`.

    Raises:
        ConflictError: it has not.
    """
    found = folder.lstat(name)
    if found is None or not stat.S_ISREG(found.st_mode):
        what = "nothing" if found is None else kind_of(found.st_mode)
        raise ConflictError(f"{label}: {what} stands there, not the file {file.digest}; remove it")
    if found.st_size != file.size or _digest(folder, name) != file.digest:
        raise ConflictError(f"{label}: another file stands there, not {file.digest}; remove it")


def _digest(folder: Folder, name: str) -> str:
    fd = folder.open_file(name)
    with os.fdopen(fd, "rb", buffering=0) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _check_same(standing: Folder, files: Sequence[FileRef], mount: str) -> None:
    """Check that a folder holds exactly these files."""
    wanted = {file.path: file for file in files}
    folders = {path[:end] for path in wanted for end in range(len(path)) if path[end] == "/"}
    for path in _found_below(standing, "", folders):
        file = wanted.pop(path, None)
        if file is None:
            raise ConflictError(f"{mount}/{path}: is no part of what is to stand there; remove {mount}")
        *above, name = path.split("/")
        with standing.walk(above) as folder:
            check_same_file(folder, name, file, f"{mount}/{path}")
    if wanted:
        raise ConflictError(f"{mount}: something else stands there, without {min(wanted)}; remove {mount}")


def _found_below(folder: Folder, prefix: str, folders: Set[str]) -> list[str]:
    """The paths of everything that is none of `folders`; no other folder is entered, however deep it goes."""
    found: list[str] = []
    for name in folder.names():
        path = prefix + name
        status = folder.lstat(name)
        if path in folders and status is not None and stat.S_ISDIR(status.st_mode):
            with folder.enter(name) as inside:
                found += _found_below(inside, f"{path}/", folders)
        else:
            found.append(path)
    return found
