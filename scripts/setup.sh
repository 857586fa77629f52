#!/usr/bin/env bash
# Gets what building needs and is not there yet: Debian packages, and LibTorch in .venv. Quick when nothing is missing.
#
# DTENSOR_TORCH_DIR=DIR        use this LibTorch (holds include/ and lib/) and install none
# DTENSOR_SKIP_PACKAGES=1      the packages are taken care of (other systems, containers)
set -euo pipefail
cd "$(dirname "$0")/.."

torch=2.15.0
python_packages=(numpy==2.4.6 expecttest==0.3.0)  # what PyTorch's operator samples import (tests/opinfo)
packages=(g++ cmake ninja-build ccache mold python3-venv python3-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libvalijson-dev
          libcli11-dev libgloo-dev bible-kjv)
mkdir -p build
log=$PWD/build/setup.log
: > "$log"
step() { echo "setup: $*"; }
# The steps talk into the log; it is shown when one fails.
quiet() { "$@" >> "$log" 2>&1 || { echo "setup: failed: $*" >&2; tail -n 30 "$log" >&2; exit 1; }; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -y --no-install-recommends "$@"; }
installed() { dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2> /dev/null | sed -n 's/^installed //p'; }

# Debian 12 has Catch2 2; version 3 is in its backports. They are taken from the mirror, and under the key, of the main
# archive, as apt itself tells them (so after an update), whatever file and format they are written in.
enable_backports() {
  local suite=$1-backports main uri source key
  [ -z "$(apt-get indextargets "Codename: $suite" 'Identifier: Packages')" ] || return 0
  step "enabling $suite"
  main=$(apt-get indextargets "Codename: $1" 'Origin: Debian' 'Component: main' 'Identifier: Packages')
  uri=$(sed -n 's/^Repo-URI: //p;T;q' <<< "$main")
  source=$(sed -n 's/^Sourcesentry: \(.*\):[0-9]*$/\1/p;T;q' <<< "$main")
  [ -n "$uri" ] || { echo "setup: apt has no main archive of $1; enable $suite by hand" >&2; exit 1; }
  key=$(grep -oiPm1 '^[^#]*signed-by[:=]\s*\K/[^]\s]+' "$source" || true)
  printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\n%s' "$uri" "$suite" "${key:+Signed-By: $key$'\n'}" > build/backports.sources
  quiet as_root cp build/backports.sources /etc/apt/sources.list.d/dtensor-backports.sources
  quiet apt update
}

if [ -n "${DTENSOR_SKIP_PACKAGES:-}" ]; then
  step "packages: skipped as asked"
elif ! command -v apt-get > /dev/null; then
  cat >&2 << TEXT
setup: this system has no apt-get. Install by its own means, then run again with DTENSOR_SKIP_PACKAGES=1:
  g++ 12 or newer, cmake 3.25 or newer, ninja, python3 with venv and pip; ccache and mold if you like;
  fmt, spdlog, nlohmann-json, valijson, CLI11, Gloo's headers, Catch2 3; a text for the demo (docs/dependencies.md).
TEXT
  exit 1
else
  missing=$(comm -23 <(printf '%s\n' "${packages[@]}" | sort) <(installed "${packages[@]}" | sort))
  catch2=$(dpkg-query -W -f '${Version}' catch2 2> /dev/null || true)
  dpkg --compare-versions "${catch2:-0}" ge 3 && catch2=present || catch2=
  if [ -z "$missing" ] && [ -n "$catch2" ]; then
    step "packages: all there"
  else
    # shellcheck disable=SC2086  # a list, one package a word
    step "packages: installing" $missing ${catch2:-catch2}
    # shellcheck disable=SC1091
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    quiet apt update
    [ "$release" != bookworm ] || [ -n "$catch2" ] || enable_backports bookworm
    # shellcheck disable=SC2086
    [ -z "$missing" ] || quiet apt install $missing
    if [ -z "$catch2" ]; then
      if [ "$release" = bookworm ]; then quiet apt install -t bookworm-backports catch2; else quiet apt install catch2; fi
    fi
  fi
fi

if [ -n "${DTENSOR_TORCH_DIR:-}" ]; then
  [ -e "$DTENSOR_TORCH_DIR/include/ATen/ATen.h" ] || { echo "setup: no LibTorch at DTENSOR_TORCH_DIR=$DTENSOR_TORCH_DIR" >&2; exit 1; }
  step "LibTorch: $DTENSOR_TORCH_DIR"
elif compgen -G ".venv/lib/python3*/site-packages/torch-$torch*.dist-info/RECORD" > /dev/null; then
  step "LibTorch: $torch is there"
else
  step "LibTorch: installing $torch into .venv (some GB: minutes)"
  [ -x .venv/bin/pip ] || quiet python3 -m venv .venv
  quiet .venv/bin/pip install --disable-pip-version-check --progress-bar off "torch==$torch"
fi

# Only for a test, so a LibTorch from elsewhere goes without.
if [ -z "${DTENSOR_TORCH_DIR:-}" ]; then
  missing=()
  for package in "${python_packages[@]}"; do
    compgen -G ".venv/lib/python3*/site-packages/${package/==/-}.dist-info/RECORD" > /dev/null || missing+=("$package")
  done
  if [ ${#missing[@]} = 0 ]; then
    step "Python packages: all there"
  else
    step "Python packages: installing ${missing[*]}"
    quiet .venv/bin/pip install --disable-pip-version-check --progress-bar off "${missing[@]}"
  fi
fi
