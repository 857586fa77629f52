#!/usr/bin/env bash
# The house rules that a compiler does not check: a room includes only the rooms above it, no source file is over 500
# lines, and no file names a folder of someone's machine. Prints each breach; exit status 1 if there is one.
set -euo pipefail
cd "$(dirname "$0")/.."

breaches=$(
  below=""
  for room in parallelize dtensor ops comm placements; do
    # ${below%|}: the rooms that build on this one, so that it must not include them
    [ -n "$below" ] && grep -nE "#include [<\"](${below%|})/" "$room"/*.h "$room"/*.cpp 2>/dev/null | sed 's/$/   <- upward include/'
    below="$room|$below"
  done
  find placements comm ops dtensor parallelize tools examples bench tests cmake scripts -type f \
      \( -name '*.h' -o -name '*.cpp' -o -name '*.cmake' -o -name '*.sh' -o -name '*.py' \) -exec wc -l {} + 2> /dev/null |
    awk '$2 != "total" && $1 > 500 {print $2 ": " $1 " lines, more than 500"}'
  # paths of a home or work folder; /tmp and system folders are fine
  git grep -nIE '(^|[^A-Za-z0-9_.$}/-])/(home|root|work|Users)/[a-z]' -- . ':!scripts/check_house.sh' |
    sed 's/$/   <- machine path/'
) || true
[ -z "$breaches" ] || { echo "$breaches"; exit 1; }
