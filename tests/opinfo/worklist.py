#!/usr/bin/env python3
"""What to write rules for: sums up files that run.sh --json wrote. usage: worklist.py FILE...

Operators of LibTorch by the number of combinations in which they were refused, ran on replicated inputs for want of a rule,
or made replicated results of placed inputs by their rule; and where.
"""

import collections
import json
import sys

TITLES = {
    "refused_by": "refused",
    "fallbacks": "ran on replicated inputs (right combinations)",
    "replicated_by_rule": "the rule's results are all Replicate (right combinations)",
}


def main(files):
    records = [json.loads(line) for file in files for line in open(file, encoding="utf-8")]
    for key, title in TITLES.items():
        counts, where = collections.Counter(), collections.defaultdict(collections.Counter)
        for record in records:
            for name, count in record.get(key, {}).items():
                counts[name] += count
                where[name][record["operator"]] += count
        print(f"{title}: {sum(counts.values())}")
        for name, count in counts.most_common():
            print(f"  {count:5} {name:45} {' '.join(f'{op}:{n}' for op, n in where[name].most_common(6))}")
    unsharded, culprits = collections.Counter(), collections.Counter()
    for record in records:
        unsharded.update(record.get("unsharded", {}))
        culprits.update(record.get("unsharded_by", {}))
    print("right, but not sharded:", dict(unsharded.most_common()))
    for name, count in culprits.most_common():
        print(f"  {count:5} {name}")
    for record in records:
        for kind in ("refused", "forward_refused", "wrong", "disagree", "hang", "crash"):
            if record.get(kind):
                print(f"{kind} {record[kind]}: {record['operator']}: {record['examples'][kind][:400]}")


if __name__ == "__main__":
    main(sys.argv[1:])
