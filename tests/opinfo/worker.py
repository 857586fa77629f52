"""Tries operators one after another, as sweep.py asks on standard input, and answers in JSON lines.

asked:    {"operator": index in op_db, "stuck": [[sample, combination], ...]}     stuck: not to be tried, they never end
answered: {"at": [sample, combination], "text": what}      before each step that may never end; combination -1: the reference
          {"done": record of the operator}
"""

import json
import logging
import os
import random
import re
import sys
import time
import types
import warnings

import torch

from compare import REPLICAS, first_difference
from programs import OutDiffers, program_for
import ranks
from samples import combinations_of, describe, name_of, op_db, placements_of, samples_of, use_even_sizes

STUCK_LIMIT = 3  # an operator that hangs or disagrees as often is not tried further
KINDS = ("right", "refused", "wrong", "disagree", "hang")
DESYNC = ("the ranks asked for different things", "values differ between ranks", "has already ended")


def judge(ends, expected):
    """(kind, text) of one combination, from the end of every rank."""
    errors = [error for _, error, _ in ends if error]
    if errors:
        alone = next((error for _, error, is_alone in ends if is_alone), None)
        timed_out = next((error for error in errors if "timed out after" in error), None)
        desync = next((error for error in errors if any(text in error for text in DESYNC)), None)
        if timed_out and not alone:
            return "hang", timed_out
        if alone:
            return "disagree", "threw on some ranks while others waited: " + alone
        if len(errors) < len(ends):
            return "disagree", f"threw on {len(errors)} of {len(ends)} ranks: " + errors[0]
        if desync:
            return "disagree", desync
        return ("forward_refused" if errors[0].startswith("ForwardRefused") else "refused"), errors[0]
    values = [value.values for value, _, _ in ends]
    placements = [value.placements for value, _, _ in ends]
    for rank, other in enumerate(values[1:], 1):
        if placements[rank] != placements[0]:
            return "disagree", f"rank {rank} placed results {placements[rank]}, rank 0 {placements[0]}"
        if (text := first_difference(other, values[0], REPLICAS)) is not None:
            return "disagree", f"rank {rank} against rank 0: {text}"
    text = first_difference(values[0], expected)
    return ("right", "") if text is None else ("wrong", f"{text}; placed {placements[0]}")


def unsharded_reason(results):
    """Why the outputs of a right combination do not count as sharded, or None: they do. One result per rank."""
    if any(result.record.fallbacks for result in results):
        return "fallback"
    placements = [p for p in results[0].placements if p is not None]
    if not placements:
        return "plain"
    if all(name == "Replicate" for names in placements for name in names):
        return "replicated"
    if any(result.record.bytes > result.largest for result in results):
        return "bytes"
    return None


def is_replicated(text):  # "[4, 8] [Replicate, Replicate]"
    return not re.search(r"Shard|Partial|Interleaved", text)


def add(counts, name):
    counts[name] = counts.get(name, 0) + 1


def note_operators(record, results, reason):
    """Which aten operators fell back, and whose rule made replicated results of placed inputs or moved an input.

    `unsharded_by` has those to which the combination owes its `reason` not to count as sharded.
    """
    first = results[0].record
    names = {"fallbacks": set(first.fallbacks), "replicated_by_rule": set(), "moved_by_rule": set()}
    for name, inputs, outputs, fallback in first.operators:
        if fallback:
            continue
        placed = [text.split(" -> ")[0] for text in inputs]
        if outputs and not all(map(is_replicated, placed)) and all(map(is_replicated, outputs)):
            names["replicated_by_rule"].add(name)
        if any(" -> " in text and not text.startswith("[] ") for text in inputs):  # 0-dimensional ones are no bytes
            names["moved_by_rule"].add(name)
    for key, found in names.items():
        for name in sorted(found):
            add(record[key], name)
    if reason is None:
        return
    key = {"fallback": "fallbacks", "replicated": "replicated_by_rule"}.get(reason)
    # Replicated results that no rule made of placed inputs: the inputs were moved before.
    # Bytes without a move are those of kernels that communicate themselves.
    for name in sorted(names.get(key) or names["moved_by_rule"] or {entry[0] for entry in first.operators}):
        add(record["unsharded_by"], f"{reason}: {name}")


def count_combination(record, ends, expected, where):
    kind, text = judge(ends, expected)
    add(record, kind)
    if kind != "forward_refused":
        record["combinations"] += 1
    if kind != "right":
        record["examples"].setdefault(kind, f"{where}: {text}"[:700])
        if kind in ("refused", "forward_refused"):
            name = re.search(r"aten::\w+", text)
            name = name.group() if name else "(outside an operator)"
            add(record["refused_by"], name)
        return
    results = [value for value, _, _ in ends]
    record["collectives"] += sum(result.record.collectives for result in results)
    reason = unsharded_reason(results)
    note_operators(record, results, reason)
    if reason is None:
        record["sharded_output"] += 1
    else:
        add(record["unsharded"], reason)
        record["examples"].setdefault("unsharded: " + reason, f"{where}: placed {results[0].placements}"[:300])


def new_record(operator):
    counts = {kind: 0 for kind in KINDS}
    lists = {key: {} for key in ("unsharded", "unsharded_by", "refused_by", "fallbacks", "replicated_by_rule",
                                 "moved_by_rule", "examples")}
    return {"operator": name_of(operator), "combinations": 0, **counts, "sharded_output": 0, "collectives": 0, **lists}


def try_operator(library, options, operator, stuck, tell):
    started = time.monotonic()
    program, generator, record = program_for(operator, options), random.Random(options.seed), new_record(operator)
    usable, limit = 0, options.samples or program.samples
    for number, sample in enumerate(samples_of(operator, options, program.backward)):
        if usable == limit:
            break
        if not sample.is_usable() or (number, -1) in stuck:
            continue
        if sample.drops_out:
            add(record, "random_samples")
            continue
        tell(at=[number, -1], text=f"reference of sample {number} ({sample.shapes()})")
        try:
            expected = program.expected(sample)
        except OutDiffers:
            add(record, "out_differs")
            continue
        except Exception:  # noqa: BLE001  (some samples are meant to throw)
            add(record, "reference_failed")
            continue
        if not expected:
            continue
        usable += 1
        outs = program.outs(expected)
        for index, combination in enumerate(combinations_of(sample, options, generator, program.combinations)):
            out_placements = [generator.choice(placements_of(out, options, pending=False)) for out in outs]
            where = f"sample {number} ({sample.shapes()}) placed {describe(combination)}"
            if outs:
                where += f", out= placed {describe(out_placements)}"
            if (number, index) in stuck or record["hang"] + record["disagree"] >= STUCK_LIMIT:
                if (number, index) not in stuck:
                    add(record, "not_tried")
                continue
            tell(at=[number, index], text=where)
            ends = ranks.run(library, options, program, sample, combination, outs, out_placements)
            count_combination(record, ends, expected, where)
    if not record["combinations"] and not stuck:
        record["skipped"] = why_untried(record, usable)
    record["seconds"] = round(time.monotonic() - started, 2)
    return record


def why_untried(record, usable):
    if record.get("forward_refused"):
        return "forward was refused"
    if usable:
        return "its first samples have no dimension that can be cut"
    if record.get("out_differs"):
        return "the plain out= form gives other values than the operator"
    if record.get("random_samples"):
        return "random or uninitialised values"
    if record.get("reference_failed"):
        return "the plain operator throws on its samples"
    return "no sample with a tensor of one dimension or more, dense and not empty"


def main():
    settings = json.loads(sys.argv[1])
    settings["dtype"] = getattr(torch, settings["dtype"])
    options = types.SimpleNamespace(**settings)
    # Operators and Python's warnings write to standard output; only answers may.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    ranks.prepare_process()
    sys.path.insert(0, options.module_folder)
    import dtensor_opinfo as library

    if not options.uneven:
        use_even_sizes()

    def tell(**answer):
        print(json.dumps(answer), file=answers, flush=True)

    for line in sys.stdin:
        asked = json.loads(line)
        stuck = {tuple(place) for place in asked["stuck"]}
        operator = op_db[asked["operator"]]
        try:
            record = try_operator(library, options, operator, stuck, tell)
        except Exception as error:  # noqa: BLE001  (making samples failed, a missing package for instance)
            record = {"operator": name_of(operator), "skipped": f"samples: {type(error).__name__}: {error}"[:200]}
        tell(done=record)


if __name__ == "__main__":
    main()
