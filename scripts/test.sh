#!/usr/bin/env bash
# Sets up, builds everything and runs all tests. usage: test.sh [PRESET]      (default release; CMakePresets.json)
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
scripts/setup.sh
mkdir -p build
# Configuring says much; what it found for LibTorch is of interest, the rest only when it fails.
cmake --preset "$preset" > build/configure.log 2>&1 || { tail -n 30 build/configure.log >&2; exit 1; }
grep -E '^-- (LibTorch|Header-only|dtensor)' build/configure.log || true
cmake --build --preset "$preset"
ctest --preset "$preset"
