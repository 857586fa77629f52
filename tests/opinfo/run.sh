#!/usr/bin/env bash
# Runs PyTorch's operator samples through the library. usage: run.sh [OPTION...]      (--help lists them; README.md)
#
# DTENSOR_OPINFO_MODULE=DIR   the folder of the built module dtensor_opinfo (default that of the preset release)
# DTENSOR_PYTHON=FILE         the interpreter that it was built for (default that of .venv)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export DTENSOR_OPINFO_MODULE=${DTENSOR_OPINFO_MODULE:-$here/../../build/release/tests/opinfo}
python=${DTENSOR_PYTHON:-$here/../../.venv/bin/python3}
compgen -G "$DTENSOR_OPINFO_MODULE/dtensor_opinfo.*" > /dev/null || {
  echo "run.sh: no module dtensor_opinfo in $DTENSOR_OPINFO_MODULE: build it (target dtensor_opinfo)" >&2
  exit 1
}
# Status 4: the test counts as skipped.
"$python" -c 'import expecttest, numpy' 2> /dev/null || { echo "run.sh: $python lacks numpy or expecttest" >&2; exit 4; }
# One thread a rank; PyTorch's warnings about the machine are of no interest here.
export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore PYTHONDONTWRITEBYTECODE=1 TORCH_LOGS=-all
exec "$python" "$here/sweep.py" "$@"
