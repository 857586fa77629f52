"""A training step of train_gpt against PyTorch's DTensor on the same model: four processes on one host.

For each mesh, one JSON line per way to run it: {"bench": "train", "case", "here_ms" or "peer_ms", "first_step_s", "memory_mb"}:
the median step, the time from the start of the program to the end of the first step, and the peak resident memory of the
largest process. Sizes: 4 layers of 256, 8 heads, 128 bytes a sequence, 8 sequences a step and data-parallel rank; float32,
AdamW, one thread. PyTorch shards data-parallel parameters (fsdp) or reduces each gradient by itself (naive).
Usage: python bench/bench_train.py [STEPS]
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build/release/bin"
TEXT = "/usr/share/common-licenses/GPL-3"
SIZES = ["--hidden", "256", "--layers", "4", "--heads", "8", "--sequence", "128"]


def run(command):
    """The peak memory in MiB of the largest process; errors end this program."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{command} failed with status {status}")
    return usage.ru_maxrss / 1024


def plan_for(dp, tp, folder):
    plan = json.loads((ROOT / "examples/plans/gpt_2d.json").read_text())
    plan["mesh"]["shape"] = [dp, tp]
    path = pathlib.Path(folder) / f"plan_{dp}x{tp}.json"
    path.write_text(json.dumps(plan))
    return str(path)


def measure(case, key, command, log, steps):
    """`log`: a JSON line per step, with step_ms and the time of day at its end in seconds."""
    begin = time.time()
    memory = run(command)
    lines = [json.loads(line) for line in open(log)]
    assert len(lines) == steps, command
    figures = {key: round(statistics.median(line["step_ms"] for line in lines[2:]), 1)}
    figures["first_step_s"] = round(lines[0]["at"] - begin, 2)
    figures["memory_mb"] = round(memory)
    print(json.dumps({"bench": "train", "case": case, **figures}), flush=True)


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as folder:
        log = folder + "/steps.jsonl"
        here = [str(BIN / "train_gpt"), "--text", TEXT, "--steps", str(steps), "--sample", "0", "--clip", "1e9", "--log", log, *SIZES]
        measure("plain", "plain_ms", here + ["--plain", "--batch", "8"], log, steps)
        launch = [str(BIN / "dtensor-run"), "-n"]
        measure("1x1", "here_ms", launch + ["1", "--"] + here + ["--plan", plan_for(1, 1, folder), "--batch", "8"], log, steps)
        for dp, tp in ((2, 2), (1, 4)):
            job = launch + ["4", "--"] + here + ["--plan", plan_for(dp, tp, folder), "--batch", str(8 * dp)]
            for backend in ("shared_memory", "gloo"):
                measure(f"{dp}x{tp} {backend}", "here_ms", job + ["--backend", backend], log, steps)
            for mode in ("fsdp", "naive") if dp > 1 else ("none",):
                peer = [sys.executable, str(ROOT / "bench/peer_train.py"), str(dp), str(tp), str(steps), mode, log]
                measure(f"{dp}x{tp} gloo, {mode}", "peer_ms", peer, log, steps)


if __name__ == "__main__":
    main()
