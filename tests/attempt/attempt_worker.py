"""What the tests start as a process of its own: a writer, a declarer or a lock holder."""

import sys
import time


def say(*words) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> None:
    what, *args = sys.argv[1:]
    if what == "append":
        from oarbank_cas.attempt import Journal

        path, writer, start, count, size, durable = args
        journal = Journal(path, durable=durable == "1")
        for number in range(int(start), int(start) + int(count)):
            journal.append([int(writer), number, "x" * (number * 7919 % int(size))])
            say(number)
    elif what == "write-slowly":
        # Another language's writer, that takes the lock but tears its own lines into pieces.
        from attempt_model import line_of

        from oarbank_cas.attempt.journal import Journal as Slow

        path, writer, start, count = args
        for number in range(int(start), int(start) + int(count)):
            line = line_of(f'[{writer}, {number}, "{"y" * (number % 50)}"]')
            with Slow(path).locked() as held:
                held.end_torn_tail()
                for at in range(0, len(line), 40):
                    held.write(line[at : at + 40])
                    time.sleep(0.0002)
            say(number)
    elif what == "declare":
        from oarbank_cas.attempt import Declaration, declare
        from oarbank_cas.errors import ConflictError

        directory, writer, count = args
        for number in range(int(count)):
            added = declare(directory, Declaration.records(f"shared_{number}", f"shared_{number}.jsonl"))
            own = declare(directory, Declaration.json(f"own_{writer}_{number}", f"own_{writer}_{number}.json"))
            try:
                won = declare(directory, Declaration.records(f"fought_{number}", f"fought_{writer}_{number}.jsonl"))
            except ConflictError:
                won = False
            say(int(added), int(own), int(won))
    elif what == "hold":
        from oarbank_cas.attempt.lock import exclusive

        with exclusive(args[0], timeout_s=10):
            say("held")
            time.sleep(600)
    else:
        raise SystemExit(f"unknown: {what}")


main()
