#!/usr/bin/env bash
# Runs the benchmarks, each with its peer. usage: bench.sh [NAME [FILTER]]
#
#   dispatch      (default) what each operator costs on DTensors here and with PyTorch's: one table, with ratios, targets and,
#                 where valgrind is installed, instructions. FILTER: only cases whose name has it in them. JSON lines go
#                 to build/bench/.
#   redistribute, collectives, startup, train, optimizer, decode, cold, plan      JSON lines
#   all           all of these
set -euo pipefail
cd "$(dirname "$0")/.."
bin=build/release/bin
out=build/bench
python=.venv/bin/python
mkdir -p "$out"
[ -x "$bin/bench_startup" ] || cmake --build --preset release
on_ranks() { "$bin/dtensor-run" -n "$1" -- "$bin/bench_$2" "${@:3}" | sed 's/^\[0\] //'; }
case "${1:-dispatch}" in
  dispatch)
    "$bin/bench_dispatch" --filter "${2:-}" > "$out/dispatch.jsonl"
    "$python" bench/peer_dispatch.py "${2:-}" > "$out/peer_dispatch.jsonl"
    instructions=()
    if command -v valgrind > /dev/null; then
      "$python" bench/instructions.py "$bin/bench_dispatch" "${2:-}" > "$out/instructions.jsonl"
      instructions=("$out/instructions.jsonl")
    fi
    "$python" bench/table.py "$out/dispatch.jsonl" "$out/peer_dispatch.jsonl" "${instructions[@]}"
    ;;
  redistribute)
    on_ranks 2 redistribute --filter "${2:-}"
    "$python" bench/peer_redistribute.py 2
    ;;
  collectives) on_ranks 2 collectives --filter "${2:-}" && on_ranks 4 collectives --filter "${2:-}" ;;
  startup)
    on_ranks 4 startup
    "$python" bench/peer_startup.py 4
    ;;
  train) "$python" bench/bench_train.py ;;
  optimizer | decode | cold | plan) "$bin/bench_$1" ;;
  all) for name in dispatch redistribute collectives startup train optimizer decode cold plan; do "$0" "$name"; done ;;
  *)
    sed -n '2,9p' "$0" >&2
    exit 2
    ;;
esac
