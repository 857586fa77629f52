#!/usr/bin/env bash
# Builds and runs the tests that need a GPU, on a machine with CUDA, Python's torch, CMake and Ninja, but no network.
# usage: device_check.sh --prepare   first, on a Debian machine that scripts/setup.sh has set up: gathers in .deps/
#                                    (ignored by git) what the build needs; .deps/include and .deps/catch2, 6 MB
#        device_check.sh             then, on the GPU machine, in a copy of this tree that has both folders
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = --prepare ]; then
  rm -rf .deps/include .deps/catch2
  mkdir -p .deps/include .deps/catch2
  cp -r /usr/include/{fmt,spdlog,nlohmann,valijson,CLI,gloo} .deps/include/
  # Catch2 is compiled there: the library in Debian's package may need a newer C library than that machine has. Debian's
  # source archive is read from the mirror that apt uses, without changing the machine's own list of sources.
  temporary=$(mktemp -d)
  trap 'rm -rf "$temporary"' EXIT
  chmod 755 "$temporary"
  mkdir -p "$temporary/lists/partial"
  codename=$(apt-cache policy libcatch2-dev | sed -nE '/^ \*\*\*/,$ s/^ +[0-9]+ [^ ]+ ([^ ]+)\/main .*/\1/p;T;q')
  uri=$(apt-get indextargets "Codename: $codename" 'Identifier: Packages' | sed -n 's/^Repo-URI: //p;T;q')
  printf 'Types: deb-src\nURIs: %s\nSuites: %s\nComponents: main\n' "$uri" "$codename" > "$temporary/catch2.sources"
  sources=(-qq -o "Dir::Etc::sourcelist=$temporary/catch2.sources" -o Dir::Etc::sourceparts=- -o "Dir::State::Lists=$temporary/lists"
           -o APT::Sandbox::User=root)
  apt-get "${sources[@]}" update
  (cd "$temporary" && apt-get "${sources[@]}" source --download-only catch2)
  tar -xf "$temporary"/catch2_*.orig.tar.* -C .deps/catch2 --strip-components 1 --exclude '*/tests' --exclude '*/docs'
  du -shc .deps/include .deps/catch2
  exit 0
fi

DTENSOR_TORCH_DIR=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))')
export DTENSOR_TORCH_DIR
cmake --preset gpu -DDTENSOR_DEPS=.deps
cmake --build --preset gpu
ctest --preset gpu
