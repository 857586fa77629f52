#!/usr/bin/env bash
# The main job: trains a small GPT on 4 processes (2 data parallel x 2 tensor parallel) from a plan, on the CPU.
# DTENSOR_DEMO_STEPS (default 300) steps; the loss of each goes to build/demo.jsonl.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
mkdir -p build
cmake --preset release > build/configure.log 2>&1 || { tail -n 30 build/configure.log >&2; exit 1; }
cmake --build --preset release --target train_gpt dtensor-run
scripts/text.sh build/data/bible.txt
bin=build/release/bin
exec "$bin/dtensor-run" -n 4 -- "$bin/train_gpt" --plan examples/plans/gpt_2d.json --text build/data/bible.txt \
  --steps "${DTENSOR_DEMO_STEPS:-300}" --log build/demo.jsonl
