"""Reads a store by docs/formats.md alone: the standard library, and nothing of the package whose stores it reads.

    python independent_reader.py STORE                 what stands in it, checked, as JSON
    python independent_reader.py STORE KEY [CLASS]     the envelope of a hit on stdout, or exit code 1 and why

It changes nothing. Whoever writes another implementation may begin here; what is not in the page must not be used here.
"""

import hashlib
import json
import os
import re
import struct
import sys

KIB, MIB = 2**10, 2**20
DIGEST = re.compile(r"[0-9a-f]{64}")
BLOB = re.compile(r"blobs/([0-9a-f]{2})/(\1[0-9a-f]{62})")
FOSSIL = re.compile(r"fossils/([0-9a-f]{2})/(\1[0-9a-f]{62})\.[0-9a-z]{1,40}(-[0-9]{1,7})?~?")
ENTRY = re.compile(r"results/([0-9a-f]{2})/(\1[0-9a-f]{62})/(_|[a-z][a-z0-9_]{0,63})@([a-z][a-z0-9_]*(?:-[a-z0-9_]+)?)")
PIN = re.compile(r"pins/([a-z0-9][a-z0-9._-]{0,99})")
SEGMENT = re.compile(r"[A-Za-z0-9_+@-][A-Za-z0-9._+@-]*")
DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9]|lpt[0-9])(\.|$)", re.IGNORECASE)


class Wrong(Exception):  # noqa: N818 - the page says what is right
    """Something in the store is not what the page says."""


def expect(is_right, what):
    if not is_right:
        raise Wrong(what)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def spelt(scalar):
    return json.dumps(scalar, ensure_ascii=False).encode()


def no_twins(pairs):
    expect(len(dict(pairs)) == len(pairs), "a key stands twice")
    return dict(pairs)


class Store:
    def __init__(self, root):
        self.root = root
        document = json.loads(self.read("oarbank-cas.json", 64 * KIB), object_pairs_hook=no_twins)
        expect(type(document["format"]) is int and document["format"] == 1, "a format that is not known")
        for name, least in (("session_s", 1), ("grace_s", 1), ("slack_s", 0), ("epoch", 0)):
            expect(type(document[name]) is int and document[name] >= least, name)
        expect(re.fullmatch(r"[0-9a-f]{32}", document["id"]), "id")
        self.descriptor = document

    # -- objects

    def read(self, name, most):
        with open(os.path.join(self.root, *name.split("/")), "rb") as file:
            data = file.read(most + 1)
        expect(len(data) <= most, f"{name} is too large")
        return data

    def names(self, folder=""):
        for path, _, files in os.walk(os.path.join(self.root, folder)):
            for file in files:
                yield os.path.relpath(os.path.join(path, file), self.root).replace(os.sep, "/")

    # -- blobs

    def blob_path(self, digest):
        """Where a reader finds a blob: under its name, else any of its fossils."""
        path = os.path.join(self.root, "blobs", digest[:2], digest)
        if os.path.exists(path):
            return path
        folder = os.path.join(self.root, "fossils", digest[:2])
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            if name.startswith(f"{digest}."):
                return os.path.join(folder, name)
        return None

    def blob(self, digest):
        path = self.blob_path(digest)
        expect(path, f"blob {digest} is absent")
        with open(path, "rb") as file:
            data = file.read()
        expect(sha256(data) == digest, f"blob {digest} is damaged")
        return data

    # -- entries

    def entry(self, data):
        """Header and body of an entry or a tombstone."""
        expect(len(data) <= 68 * MIB, "the object is too large")
        end = data.find(b"\n", 0, MIB + 1)
        expect(end >= 0, "the header has no end")
        line, body = data[:end], data[end + 1 :]
        seal = re.fullmatch(rb',"header_sha256":"([0-9a-f]{64})"\}', line[-84:])
        expect(seal, "the header does not end with its checksum")
        expect(sha256(line[:-84] + b"}").encode() == seal[1], "the header is damaged")
        header = json.loads(line)
        expect(header["format"] == 1 and header["kind"] in ("entry", "tombstone"), "a kind that is not known")
        expect((header["body_size"], header["body_sha256"]) == (len(body), sha256(body)), "the body is damaged")
        return header, body

    def lookup(self, key, result_class="any"):
        """The header and the envelope of a hit; else it raises, with the reason."""
        digits, _, stage = key.partition(":")
        name = f"results/{digits[:2]}/{digits}/{stage or '_'}@{result_class}"
        try:
            data = self.read(name, 68 * MIB)
        except FileNotFoundError:
            raise Wrong("absent") from None
        header, envelope = self.entry(data)
        expect(header["kind"] == "entry", header.get("cause"))
        asked = (key, stage or None, result_class)
        expect((header["job_key"], header["stage"], header["class"]) == asked, "of another key, stage or class")
        for digest, size in self.references(header, envelope).items():
            path = self.blob_path(digest)
            expect(path and size in (None, os.path.getsize(path)), f"incomplete: {digest}")
        return header, envelope

    def references(self, header, envelope):
        """Every digest that an entry refers to, with its size where that is said."""
        found = {}
        waiting = [json.loads(envelope.decode()).get("artifacts")]
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                digest, size = value.get("digest"), value.get("size")
                if isinstance(digest, str) and DIGEST.fullmatch(digest) and type(size) is int and size >= 0:
                    expect(found.setdefault(digest, size) == size, f"{digest} has two sizes")
                waiting.extend(value.values())
            elif isinstance(value, list):
                waiting.extend(value)
        for dataset in header["datasets"].values():
            found.setdefault(dataset.removeprefix("art:"), None)
        return found

    def manifest(self, dataset):
        data = self.blob(dataset.removeprefix("art:"))
        expect(len(data) <= 64 * MIB, "the manifest is too large")
        document = json.loads(data)
        files = document["files"]
        expect(document.keys() == {"files"} and files, "no manifest")
        for file in files:
            expect(file.keys() == {"digest", "path", "size"} and DIGEST.fullmatch(file["digest"]), "no manifest")
            expect(type(file["size"]) is int and 0 <= file["size"] <= 2**53, "a size")
            path = file["path"]
            expect(len(path) <= 200, path)
            for segment in path.split("/"):
                expect(SEGMENT.fullmatch(segment) and len(segment) <= 100 and segment[-1] != ".", path)
                expect(not DEVICE.match(segment), path)
        paths = [file["path"] for file in files]
        folded = {path.casefold() for path in paths}
        expect(paths == sorted(paths) and len(folded) == len(paths), "the order of paths")
        expect(not any(path.rpartition("/")[0] in folded for path in folded), "a path is another's directory")
        # Canonical JSON of these members: no spaces, sorted keys, and nothing that would have to be escaped.
        expect(json.dumps(document, separators=(",", ":"), sort_keys=True).encode() == data, "not canonical")
        return files

    # -- key inputs

    def key_inputs(self, header):
        """The document that a job key was made of, where an entry says that it is kept."""
        digits = header["job_key"].partition(":")[0]
        data = self.blob(digits)
        expect(len(data) == header["key_inputs"] <= MIB, "key inputs of another size")
        return json.loads(data)

    def sketch(self, document):
        """64 bytes of the scalars of key inputs. (Numbers with a fraction would need RFC 8785's own spelling.)"""
        made = bytearray(64)
        waiting = [(b"", document)]
        while waiting:
            path, value = waiting.pop()
            if isinstance(value, dict):
                waiting += [(path + b"/" + spelt(key), child) for key, child in value.items()]
            elif isinstance(value, list):
                waiting += [(path + b"/" + str(index).encode(), child) for index, child in enumerate(value)]
            else:
                expect(not isinstance(value, float), "a number with a fraction")
                where = hashlib.sha256(path).digest()
                what = hashlib.sha256(path + b"\n" + spelt(value)).digest()
                made[where[0] % 32] ^= what[0]
                made[32 + where[1] % 32] ^= what[1]
        return made.hex()

    # -- the rest

    def pin(self, name):
        document = json.loads(self.read(f"pins/{name}", 64 * KIB), object_pairs_hook=no_twins)
        expect(document["format"] == 1 and document["pin"] == name, "no pin")
        expect(isinstance(document["held_since"], str), "no pin")
        kept = [word for word in ("job_key", "dataset", "digest") if document.get(word) is not None]
        expect(len(kept) == 1, "it does not say what it keeps")
        return {"keeps": document[kept[0]], "class": document.get("class"), "expires_at": document.get("expires_at")}

    def state(self, name):
        """The records of one part of what gc leaves for its next run."""
        line, _, body = self.read(name, 128 * MIB).partition(b"\n")
        head = json.loads(line)
        expect(head.pop("format") in (1, 2), f"{name} has another version")
        of_this_store = {"store": self.descriptor["id"], "epoch": self.descriptor["epoch"], "sha256": sha256(body)}
        expect(head == of_this_store, f"{name} is damaged")
        kind = re.fullmatch(r"gc/state/[0-9a-f]{16}/(entries|manifests|fossils)-[0-9]{6}", name)[1]
        if kind == "manifests":
            return kind, [line.split(" ")[0] for line in body.decode().splitlines()]
        if kind == "fossils":
            return kind, [json.loads(line)[0] for line in body.splitlines()]
        found, at = [], 0
        while at < len(body):
            end = body.index(b"\n", at)
            name, _validator, _ended, _module, _recorded, references, manifests = json.loads(body[at:end])
            at = end + 1
            pairs = [struct.unpack_from(">32sq", body, at + 40 * index) for index in range(references)]
            at += 40 * references + 32 * manifests
            found.append([name, sorted([digest.hex(), size] for digest, size in pairs)])
        return kind, found

    def everything(self):
        """All that stands, checked."""
        told = {"blobs": {}, "fossils": [], "entries": {}, "tombstones": {}, "datasets": {}, "pins": {}, "state": {}}
        told |= {"runs": [], "hits": [], "purges": [], "policy": None, "unknown": []}
        told |= {"key_inputs": {}, "sketches": {}, "ended": []}
        for name in sorted(self.names()):
            if match := BLOB.fullmatch(name):
                told["blobs"][match[2]] = len(self.blob(match[2]))
            elif match := FOSSIL.fullmatch(name):
                expect(sha256(self.read(name, 64 * MIB)) == match[2], f"{name} is damaged")
                told["fossils"].append(name)
            elif match := ENTRY.fullmatch(name):
                self._told_entry(told, match, self.read(name, 68 * MIB))
            elif match := PIN.fullmatch(name):
                told["pins"][match[1]] = self.pin(match[1])
            elif not self._told_record(told, name) and not name.startswith(("tmp/", "damaged/", "oarbank-cas.json")):
                told["unknown"].append(name)
        return told

    def _told_record(self, told, name):
        """Tell of what is kept beside blobs and entries; False where a name is none of a store's."""
        if re.fullmatch(r"gc/runs/[0-9]{12}-[0-9a-f]{16}\.json", name):
            run = json.loads(self.read(name, 16 * MIB))
            told["runs"].append({word: run[word] for word in ("store", "epoch", "completed", "state", "exit_code")})
        elif name.startswith("gc/state/"):
            kind, records = self.state(name)
            told["state"].setdefault(kind, []).extend(records)
        elif re.fullmatch(r"gc/hits/[0-9]{4}-[0-9]{2}-[0-9]{2}/[0-9a-f]{16}", name):
            told["hits"] += self.read(name, 64 * MIB).decode().splitlines()
        elif re.fullmatch(r"gc/purges/[0-9]{12}-[0-9a-f]{64}-[0-9a-f]{8}\.json", name):
            told["purges"].append(json.loads(self.read(name, MIB)))
        elif re.fullmatch(r"gc/ended/[0-9]{12}-[0-9a-f]{16}-[0-9a-f]{8}-[0-9a-f]{8}", name):
            told["ended"] += self.read(name, 64 * MIB).decode().splitlines()
        elif match := re.fullmatch(
            r"explain/1/new/([0-9a-f]{16})/([0-9a-f]{2})/(\2[0-9a-f]{62})\.([0-9a-f]{128})", name
        ):
            told["sketches"][match[3]] = [match[1], match[4]]
        elif name == "explain/1/made":
            expect(self.read(name, 0) == b"", name)
        elif name == "policy.json":
            told["policy"] = json.loads(self.read(name, 64 * KIB))
        else:
            return False
        return True

    def _told_entry(self, told, match, data):
        header, body = self.entry(data)
        key = match[2] if match[3] == "_" else f"{match[2]}:{match[3]}"
        expect((header["job_key"], header["class"]) == (key, match[4]), "an entry under another's name")
        if header["kind"] == "tombstone":
            ended, _ = self.entry(body)
            told["tombstones"][f"{key}@{match[4]}"] = [header["cause"], header["reason"], ended["datasets"]]
            return
        self.lookup(key, match[4])
        if "key_inputs" in header:
            document = self.key_inputs(header)
            module = sha256(document["module"].encode())[:16]
            told["key_inputs"][match[2]] = [document, module, self.sketch(document)]
        told["entries"][f"{key}@{match[4]}"] = [header["recorded_by"], header["datasets"], sha256(body)]
        for dataset in header["datasets"].values():
            files = self.manifest(dataset)
            told["datasets"][dataset] = [
                [file["path"], file["digest"], len(self.blob(file["digest"]))] for file in files
            ]


def main(arguments):
    store = Store(arguments[0])
    try:
        if len(arguments) == 1:
            sys.stdout.write(json.dumps(store.everything()))
        else:
            sys.stdout.buffer.write(store.lookup(*arguments[1:])[1])
    except Wrong as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
