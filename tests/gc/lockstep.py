"""A bucket that does what the memory backend does, step by step: where their answers differ, one of them is wrong.

The world's clock stays the memory's, so that a session lasts no longer than its requests. What is tried is the rest:
whether creates, replaces, deletes, late deletes and copies come out on the server as the schedules assume.
"""

from __future__ import annotations

from oarbank_cas.backends.memory import MemoryBackend, _bytes_of
from oarbank_cas.errors import ConflictError, NotFoundError

from .world import S, Violation


class Lockstep(MemoryBackend):
    """A memory backend that asks a bucket the same.

    Args:
        bucket: the bucket's backend; nothing in it yet.
        how: the memory backend's arguments.
    """

    def __init__(self, bucket, **how):
        super().__init__(**how)
        self.bucket = bucket
        self.steps = 0
        self._theirs = {}  # a validator here -> the one there

    def fill(self):
        """Put into the bucket what stands here."""
        for name, (stat, data) in sorted(self._objects.items()):
            self._agree("fill", name, stat, self._put_there(name, data))

    def compare(self):
        """The same names there as here, in the same order, with the same bytes."""
        listed = [stat.name for stat in self.bucket.listing("") if not stat.name.startswith("tmp/clock-")]
        if listed != sorted(self._objects):
            raise Violation(f"other names stand in the bucket: {set(listed) ^ set(self._objects)}")
        for name, (_, data) in self._objects.items():
            if self.bucket.read(name, 2**30)[0] != data:
                raise Violation(f"{name} has other bytes in the bucket")

    # -- steps

    def _create(self, name, data):
        return self._agree("create", name, super()._create(name, data), self._put_there(name, data))

    def replace(self, name, incoming, expected):
        data = _bytes_of(incoming)
        again = self.incoming()
        again.write(data)
        blurred = self._blurred(name, expected)
        stat = super().replace(name, again, expected)
        if blurred:
            return stat
        made = self.bucket.replace(name, self._incoming_there(data), self._theirs.get(expected, "none"))
        return self._agree("replace", name, stat, made)

    def delete(self, name, expected=None):
        blurred = self._blurred(name, expected)
        done = super().delete(name, expected)
        if not blurred:
            there = None if expected is None else self._theirs.get(expected, "none")
            self._agree("delete", name, done or None, self.bucket.delete(name, there) or None)
        return done

    def delete_expiring(self, name, issued_ns, life_s):
        late = self.now() > issued_ns + life_s * S
        stood = name in self._objects
        now_ns = self.bucket.now()
        try:
            done = self.bucket.delete_expiring(name, now_ns - (2 * life_s * S if late else 0), life_s)
        except ConflictError:
            done = "late"
        if done != ("late" if late and stood else stood):
            raise Violation(f"the bucket's late delete of {name}: {done}, and it was {'late' if late else 'in time'}")
        if late:
            raise ConflictError(f"{self.where} refused a delete of {name} that came after its time")
        return MemoryBackend.delete(self, name)

    def copy(self, name, to):
        try:
            found = self._get(name)
        except NotFoundError:
            self._agree("copy", name, None, self._copied(name, to))
            raise
        return self._agree("copy", to, MemoryBackend._create(self, to, found[1]), self._copied(name, to))

    def stat(self, name):
        found = super().stat(name)
        self._agree("stat", name, found, self.bucket.stat(name))
        return found

    # -- the bucket

    def _incoming_there(self, data):
        incoming = self.bucket.incoming(len(data))
        incoming.write(data)
        return incoming

    def _put_there(self, name, data):
        return self.bucket.commit([(name, self._incoming_there(data))])[0]

    def _copied(self, name, to):
        try:
            return self.bucket.copy(name, to)
        except NotFoundError:
            return None

    def _blurred(self, name, expected):
        """Another incarnation stands, and S3 cannot tell: the same bytes within a second; see `exact_identity`."""
        standing = self._objects.get(name)
        if standing is None or expected in (None, standing[0].validator):
            return False
        return self._theirs.get(expected) == self._theirs[standing[0].validator]

    def _agree(self, op, name, here, there):
        self.steps += 1
        if (here is None) != (there is None):
            raise Violation(f"{op} {name}: {here} in memory, {there} in the bucket")
        if here is not None and here is not True:
            if here.size != there.size:
                raise Violation(f"{op} {name}: {here.size} bytes in memory, {there.size} in the bucket")
            if self._theirs.setdefault(here.validator, there.validator) != there.validator:
                raise Violation(f"{op} {name}: the bucket's validator became another")
        return here
