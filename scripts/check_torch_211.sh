#!/usr/bin/env bash
# Checks that all sources compile against the oldest LibTorch supported, 2.11: syntax only, nothing is linked or run.
# No part of the tests: its first run downloads a wheel of some hundred MB, of which only the headers are kept.
# usage: check_torch_211.sh [FILTER]      (a regular expression on paths of sources: ^comm/)
set -euo pipefail
cd "$(dirname "$0")/.."
version=2.11.0 filter=${1:-.}
folder=$PWD/.deps/torch-2.11

if [ ! -e "$folder/torch/include/ATen/ATen.h" ]; then
  rm -rf "$folder"
  mkdir -p "$folder"
  python3 -m venv "$folder/venv"
  "$folder/venv/bin/pip" download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$folder" "torch==$version"
  python3 - "$folder" << 'PYTHON'
import glob, os, re, sys, zipfile
folder = sys.argv[1]
wheel, = glob.glob(folder + "/torch-*.whl")
with zipfile.ZipFile(wheel) as archive:
    archive.extractall(folder, [name for name in archive.namelist() if name.startswith("torch/include/")])
    libraries = [name for name in archive.namelist() if re.fullmatch(r"torch/lib/lib\w+\.so", name)]
os.remove(wheel)
os.makedirs(folder + "/torch/lib", exist_ok=True)
for name in libraries:  # empty: their names tell the build what this LibTorch has
    open(os.path.join(folder, name), "w").close()
PYTHON
  rm -rf "$folder/venv"
fi
# CUDA's and NCCL's headers: those of the LibTorch that scripts/setup.sh installed.
for nvidia in .venv/lib/python3*/site-packages/nvidia; do ln -sfn "$PWD/$nvidia" "$folder/nvidia"; done

build=build/torch-2.11
mkdir -p build
cmake --preset release -B "$build" -DDTENSOR_TORCH_DIR="$folder/torch" -DDTENSOR_PCH=OFF -DDTENSOR_UNITY=OFF -DDTENSOR_CCACHE=OFF > "$build.log" 2>&1 ||
  { tail -n 30 "$build.log" >&2; exit 1; }

# Each command of the build, without its outputs.
python3 - "$build/compile_commands.json" "$filter" << 'PYTHON' > "$build/commands"
import json, os, re, sys
for entry in json.load(open(sys.argv[1])):
    source = os.path.relpath(entry["file"])
    if re.search(sys.argv[2], source) and not source.startswith("build/"):
        command = re.sub(r" -o \S+ -c (\S+)$", r" -fsyntax-only \1", entry["command"])
        print(f"echo {source} && cd {entry['directory']} && {command}\0", end="")
PYTHON
xargs -0 -r -n 1 -P "$(nproc)" bash -c < "$build/commands"
echo "all compile against LibTorch $version"
