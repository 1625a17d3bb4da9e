#!/usr/bin/env bash
# Where there is none, in the environment that trains: install.sh WHEELHOUSE. Nothing but vlmpatch and what it imports
# itself is installed; torch and the rest stay as they are.
set -euo pipefail
folder=$1

(cd "$folder" && sha256sum --check --quiet SHA256SUMS)
python -m pip install --no-index --find-links "$folder" vlmpatch
python -m vlmpatch list > /dev/null
