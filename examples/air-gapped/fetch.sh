#!/usr/bin/env bash
# Where there is a network: fetch.sh WHEELHOUSE [what, vlmpatch==0.2.0]. Run it with a Python of the version that trains.
set -euo pipefail
folder=$1 what=${2:-vlmpatch==0.2.0}

python -m pip download --only-binary :all: --dest "$folder" "$what"
(cd "$folder" && sha256sum -- *.whl > SHA256SUMS)
