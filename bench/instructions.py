"""Counts the instructions of each dispatch case with callgrind: figures that a busy machine does not change.

usage: instructions.py PATH/bench_dispatch [FILTER]

One JSON line per case: {"bench": "dispatch", "case", "plain_instructions", "here_instructions"}, both per call.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

CALLS = 20
PROFILED = "bench_profiled_calls"


def instructions(profile):
    return int(re.search(r"^(?:totals|summary): (\d+)", profile.read_text(), re.MULTILINE).group(1))


def main():
    program, name = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    with tempfile.TemporaryDirectory() as folder:
        # A profile after every group of calls: plain and here take turns.
        run = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/profile", "--collect-atstart=no",
             f"--toggle-collect={PROFILED}", f"--dump-after={PROFILED}", "--",
             program, "--only", "both", "--count", str(CALLS), "--filter", name],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if run.returncode:
            sys.exit(run.stderr)
        cases = run.stdout.splitlines()
        profiles = sorted(pathlib.Path(folder).glob("profile.*"), key=lambda path: int(path.suffix[1:]))
        counts = [instructions(profile) / CALLS for profile in profiles[: 2 * len(cases)]]
    if len(counts) != 2 * len(cases):
        sys.exit(f"{len(cases)} cases and {len(counts)} profiles")
    for case, plain, here in zip(cases, counts[::2], counts[1::2]):
        print(json.dumps({"bench": "dispatch", "case": case, "plain_instructions": plain, "here_instructions": here}))


if __name__ == "__main__":
    main()
