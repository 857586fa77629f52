"""Joins JSON lines of the dispatch benchmarks (here and the peer's) by case and prints one Markdown table."""

import json
import sys

# Kinds whose cost in Python is above the others' by more than twice: a stricter target.
STRICT = ("view", "reshape", "mul_ scalar", "rand_like", "uniform_", "dropout", "stack")


def main():
    cases = {}
    for path in sys.argv[1:]:
        with open(path) as lines:
            for line in lines:
                figures = json.loads(line)
                cases.setdefault(figures["case"], {}).update(figures)
    counted = any("here_instructions" in row for row in cases.values())
    print("| case | plain ns | here ns | extra |" + " extra instructions |" * counted +
          " peer plain ns | peer ns | peer extra | ratio of extras | target |")
    print("|---|--:|--:|--:|" + "--:|" * counted + "--:|--:|--:|--:|--:|")
    met = known = 0
    for name, row in cases.items():
        if "here_ns" not in row:
            continue
        extra = row["here_ns"] - row["plain_ns"]
        cells = [name, f"{row['plain_ns']:.0f}", f"{row['here_ns']:.0f}", f"{extra:.0f}"]
        if counted:
            cells.append(f"{row['here_instructions'] - row['plain_instructions']:.0f}" if "here_instructions" in row else "")
        strict = name.removesuffix(" grad") in STRICT
        target = 1 / 12 if strict else 1 / 6
        if "peer_ns" in row:
            peer_extra = row["peer_ns"] - row["peer_plain_ns"]
            ratio = extra / peer_extra
            known += 1
            met += ratio <= target
            mark = "" if ratio <= target else " missed"
            cells += [f"{row['peer_plain_ns']:.0f}", f"{row['peer_ns']:.0f}", f"{peer_extra:.0f}",
                      f"1/{1 / ratio:.1f}" if ratio > 0 else "0", ("1/12" if strict else "1/6") + mark]
        else:
            cells += ["", "", "", "", "peer refuses"]
        print("| " + " | ".join(cells) + " |")
    print(f"\n{met} of {known} cases within their target.")


if __name__ == "__main__":
    main()
