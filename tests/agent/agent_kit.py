"""Jobs, envelopes, specs and trees for tests of the agent side and the command line."""

import hashlib
import json
import os
import stat
from pathlib import Path

from oarbank_cas import Origin, Store
from oarbank_cas import descriptor as descriptors
from oarbank_cas.backends.memory import MemoryBackend

ORIGIN = Origin("tester@bench", attempt="attempt-1")


def digest(data):
    return hashlib.sha256(data).hexdigest()


def key(number=0):
    return digest(f"job {number}".encode())


def memory_store(backend=None, session_s=3600):
    return Store(backend or MemoryBackend(), descriptors.new(session_s, 86400, 300, "2026-01-01T00:00:00Z"))


def objects(store, prefix=""):
    """Name -> size of everything in a store but its own temporaries."""
    return {
        found.name: found.size for found in store.backend.listing(prefix) if not found.name.startswith(("tmp/", "gc/"))
    }


def result(artifacts=(), **more):
    """A result envelope's document; `artifacts` maps a name to file objects, or to `{path: local}`."""
    listed = []
    for name, files in dict(artifacts).items():
        if isinstance(files, dict):
            files = [{"path": path, "local": local} for path, local in files.items()]
        listed.append({"name": name, "files": list(files)})
    document = {"schema": "align/result@1", "module_version": "1.2.3", "payload": {"score": "0.5"}}
    return document | {"artifacts": listed} | more


def write_files(folder, contents):
    for path, data in contents.items():
        target = Path(folder, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def write_job(workdir, contents, document=None):
    """Files of a job, and the envelope that names them all as the artifact `out` (or `document`)."""
    Path(workdir).mkdir(parents=True, exist_ok=True)
    write_files(workdir, contents)
    if document is None:
        document = result({"out": {path: path for path in contents}})
    text = document if isinstance(document, (str, bytes)) else json.dumps(document)
    data = text if isinstance(text, bytes) else text.encode()
    Path(workdir, "result.json").write_bytes(data)
    return data


def dataset_of(store, contents):
    """Put files and their manifest; the dataset."""
    listed = [
        {"digest": store.put_bytes(data).digest, "path": path, "size": len(data)} for path, data in contents.items()
    ]
    return raw_dataset(store, canonical({"files": sorted(listed, key=lambda file: file["path"])}))


def raw_dataset(store, manifest):
    """Any bytes put as the manifest of a dataset."""
    return f"art:{store.put_bytes(manifest).digest}"


def canonical(document):
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def spec(inputs=None, datasets=(), mounts=None, **more):
    """A spec envelope; `inputs` maps a name to (dataset, mount)."""
    document = {
        "schema": "align/spec@1",
        "module_id": "org.example.align",
        "module_version": "1.2.3",
        "job_key": key(),
        "payload": {},
        "datasets": list(datasets),
        "mounts": dict(mounts or {}),
        "inputs": {name: {"dataset": data, "mount": mount} for name, (data, mount) in (inputs or {}).items()},
    }
    return json.dumps(document | more).encode()


def tree(folder):
    """Path -> bytes, or what it is otherwise, of everything below a folder; links are not followed."""
    found = {}
    for base, directories, files in os.walk(folder):
        for name in directories + files:
            path = os.path.join(base, name)
            mode = os.lstat(path).st_mode
            relative = os.path.relpath(path, folder)
            if stat.S_ISLNK(mode):
                found[relative] = f"link to {os.readlink(path)}"
            elif stat.S_ISDIR(mode):
                found[relative] = "directory"
            elif stat.S_ISREG(mode):
                found[relative] = Path(path).read_bytes()
            else:
                found[relative] = f"mode {mode:o}"
    return found


def files_in(folder):
    """The same without directories."""
    return {path: what for path, what in tree(folder).items() if what != "directory"}
