#!/usr/bin/env bash
# Writes a text of 4 MB to learn from, one verse a line: the King James Bible of Debian's package bible-kjv.
# usage: text.sh [FILE]      (default build/data/bible.txt; kept if it exists)
set -euo pipefail
cd "$(dirname "$0")/.."
file=${1:-build/data/bible.txt}
[ ! -s "$file" ] || exit 0
mkdir -p "$(dirname "$file")"
# -f: a verse a line, after its reference (Ge1:1), which is cut off. Without a closed input the program would wait.
bible -f 'gen1:1-rev22:21' < /dev/null | sed -E 's/^[0-9]?[A-Za-z]+[0-9]*:[0-9]+ //' > "$file.part"
mv "$file.part" "$file"
