#!/usr/bin/env bash
# Measures what each operator costs on DTensors here and with PyTorch's, and prints one table: the extra time over plain
# tensors of both, their ratio and the target of that. The JSON lines go to build/bench/. One argument: only cases whose
# name has it in them.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=build/release/bin
out=build/bench
mkdir -p "$out"
[ -x "$bin/bench_dispatch" ] || cmake --build --preset release --target bench_dispatch
"$bin/bench_dispatch" --filter "${1:-}" > "$out/dispatch.jsonl"
.venv/bin/python bench/peer_dispatch.py "${1:-}" > "$out/peer_dispatch.jsonl"
exec .venv/bin/python bench/table.py "$out/dispatch.jsonl" "$out/peer_dispatch.jsonl"
