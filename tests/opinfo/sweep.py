"""Runs PyTorch's operator samples through this library and counts (README.md). The last line is one JSON object.

Workers (worker.py) try the operators; one that takes longer than the limit, or dies, is replaced, and the operator goes on
without the combination that it was at.
"""

import argparse
import collections
import json
import os
import queue
import random
import re
import subprocess
import sys
import threading
import time
import types

import torch

from samples import name_of, op_db, reason_to_skip

TOTALS = ("operators", "operators_right", "combinations", "combinations_right", "sharded_output",
          "refused", "wrong", "hang", "disagree")
FOLDER = os.path.dirname(os.path.abspath(__file__))
DEATHS = 3  # workers that one operator may cost
START = 60  # s beyond an operator's limit that a worker may take to import LibTorch


def parse_arguments():
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__.split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("--mesh", default="4", choices=["2", "4", "2x2"], help="ranks along each mesh dimension")
    add("--uneven", action="store_true", help="PyTorch's own sizes, cut along any dimension of size > 1; else sizes that divide")
    add("--dtype", default="float32")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--backward", action="store_true", help="gradients of sum(o * o)")
    mode.add_argument("--inplace", action="store_true", help="the in-place forms")
    mode.add_argument("--out", action="store_true", help="the out= forms")
    add("--partial", action="store_true", help="inputs may also be Partial(sum), at least one is")
    add("--seed", type=int, default=0, help="of sample values, of placements and of --sample")
    add("--filter", metavar="RE", help="only operators whose name has this")
    add("--sample", type=int, metavar="COUNT", help="only as many operators, drawn by seed")
    add("--samples", type=int, metavar="COUNT", help="of each operator (default 4; --backward: 3)")
    add("--limit", type=float, default=25, metavar="SECONDS", help="what one operator may take")
    add("--jobs", type=int, default=1, help="workers")
    add("--json", metavar="FILE", help="one record per operator, a line each")
    add("--require", action="append", default=[], metavar="NAME=SHARE",
        help="fail unless at least this share of combinations: combinations_right, sharded_output")
    add("--forbid", default="", metavar="NAMES", help="fail if there is one of these: wrong,hang,disagree,crash")
    add("--fault", action="store_true", help="the last rank places other values: shows that faults are found")
    add("--verbose", action="store_true", help="show what workers write to standard error")
    return parser.parse_args()


class Worker:
    """One worker process; its answers are read on a thread of their own, so that waiting for one can end."""

    def __init__(self, arguments):
        settings = {key: getattr(arguments, key) for key in
                    ("uneven", "dtype", "backward", "inplace", "out", "partial", "seed", "samples", "fault")}
        settings["mesh"] = [int(size) for size in arguments.mesh.split("x")]
        settings["module_folder"] = os.environ["DTENSOR_OPINFO_MODULE"]
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(FOLDER, "worker.py"), json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=None if arguments.verbose else subprocess.DEVNULL)
        self.answers = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.answers.put(json.loads(line))
        self.answers.put(None)

    def ask(self, operator, stuck):
        try:
            self.process.stdin.write(json.dumps({"operator": operator, "stuck": stuck}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the next answer tells

    def stop(self):
        self.process.kill()
        self.process.wait()


class Sweep:
    def __init__(self, arguments, operators):
        self.arguments = arguments
        self.waiting = queue.Queue()
        for index in operators:
            self.waiting.put(index)
        self.count = len(operators)
        self.lock = threading.Lock()
        self.records = []
        self.file = open(arguments.json, "w", encoding="utf-8") if arguments.json else None

    def run(self):
        threads = [threading.Thread(target=self._serve) for _ in range(self.arguments.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def add(self, record):
        with self.lock:
            self.records.append(record)
            if self.file:
                print(json.dumps(record), file=self.file, flush=True)
            if sys.stderr.isatty():
                print(f"\r{len(self.records)}/{self.count} {record['operator']:50.50}", end="", file=sys.stderr)

    def _serve(self):
        worker = None
        while True:
            try:
                index = self.waiting.get_nowait()
            except queue.Empty:
                break
            worker, record = self._try(worker, index)
            self.add(record)
        if worker:
            worker.stop()

    def _try(self, worker, index):
        """Returns the worker to go on with, and the operator's record."""
        stuck, deaths = [], []
        while True:
            if worker is None:
                worker = Worker(self.arguments)
            worker.ask(index, stuck)
            at, text = None, "before the first sample"
            deadline = time.monotonic() + START + self.arguments.limit
            while True:
                try:
                    answer = worker.answers.get(timeout=max(0, deadline - time.monotonic()))
                except queue.Empty:
                    deaths.append(("hang", at, text))
                    break
                if answer is None:
                    deaths.append(("crash", at, f"{text}: exit status {worker.process.wait()}"))
                    break
                if "done" in answer:
                    return worker, self._with_deaths(answer["done"], deaths)
                if at is None:
                    deadline = time.monotonic() + self.arguments.limit
                at, text = answer["at"], answer["text"]
            worker.stop()
            worker = None
            if at is None or len(deaths) == DEATHS:
                record = {"operator": name_of(op_db[index]), "combinations": 0, "right": 0, "sharded_output": 0}
                return worker, self._with_deaths(record, deaths)
            stuck.append(at)

    @staticmethod
    def _with_deaths(record, deaths):
        for kind, at, text in deaths:
            if at and at[1] < 0:
                record.setdefault("references_stuck", []).append(text)
                continue
            record["combinations"] = record.get("combinations", 0) + 1
            record[kind] = record.get(kind, 0) + 1
            record.setdefault("examples", {}).setdefault(kind, text)
        return record


def total(records):
    sums = collections.Counter({name: 0 for name in (*TOTALS, "crash", "not_tried", "collectives", "forward_refused")})
    for record in records:
        if not record.get("combinations"):
            continue
        sums["operators"] += 1
        sums["operators_right"] += record["right"] == record["combinations"] and not record.get("not_tried")
        sums["combinations_right"] += record["right"]
        for name in sums:
            if name not in ("operators", "operators_right", "combinations_right"):
                sums[name] += record.get(name, 0)
    return dict(sums)


def report(records):
    skipped, left_out = collections.defaultdict(list), collections.defaultdict(list)
    reasons = {"random_samples": "random values", "out_differs": "the plain out= form gives other values than the operator"}
    for record in records:
        if record.get("skipped"):
            skipped[record["skipped"]].append(record["operator"])
        elif not record.get("combinations"):
            skipped["its plain form does not return"].append(record["operator"])
        for key, reason in reasons.items():
            if record.get("combinations") and record.get(key):
                left_out[reason].append(record["operator"])
        for kind in ("wrong", "disagree", "hang", "crash"):
            if record.get(kind):
                print(f"{kind} {record[kind]}: {record['operator']}: {record['examples'][kind]}")
    for reason, names in skipped.items():
        print(f"skipped, {reason}: {len(names)}: {' '.join(names)}")
    for reason, names in left_out.items():
        print(f"some samples skipped, {reason}: {len(names)}: {' '.join(names)}")


def complaints(arguments, sums):
    found = [f"{sums[name]} {name}" for name in arguments.forbid.split(",") if name and sums[name]]
    if arguments.require and not sums["combinations"]:
        found.append("no combination was tried")
    for text in arguments.require:
        name, share = text.split("=")
        if sums[name] < float(share) * sums["combinations"]:
            found.append(f"{name} is {sums[name] / max(1, sums['combinations']):.4f} of the combinations, less than {share}")
    return found


def main():
    arguments = parse_arguments()
    # Here only to fail at once, with the reason, where the module cannot be loaded: every worker would die of it.
    sys.path.insert(0, os.environ["DTENSOR_OPINFO_MODULE"])
    import dtensor_opinfo  # noqa: F401

    options = types.SimpleNamespace(**{**vars(arguments), "dtype": getattr(torch, arguments.dtype)})
    chosen = [i for i, op in enumerate(op_db) if not arguments.filter or re.search(arguments.filter, name_of(op))]
    reasons = {i: reason_to_skip(op_db[i], options) for i in chosen}
    tried = [i for i in chosen if reasons[i] is None]
    if arguments.sample and arguments.sample < len(tried):
        tried = sorted(random.Random(arguments.seed).sample(tried, arguments.sample))
    started = time.monotonic()
    sweep = Sweep(arguments, tried)
    for i in chosen:
        if reasons[i] is not None:
            sweep.add({"operator": name_of(op_db[i]), "skipped": reasons[i]})
    sweep.run()
    report(sweep.records)
    sums = total(sweep.records)
    found = complaints(arguments, sums)
    for text in found:
        print("too bad:", text)
    sums["seconds"] = round(time.monotonic() - started, 1)
    print(json.dumps(sums))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
