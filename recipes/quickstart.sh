#!/usr/bin/env bash
# quickstart.sh - from a fresh Debian or Ubuntu machine to a trained VLM, in one command.
#
#     recipes/quickstart.sh [section.key=value ...]
#
# Installs what is missing, builds, trains recipes/quickstart.yaml on the stamps of the
# package tuxpaint-stamps-default, and shows captions the model makes of them.
set -euo pipefail
cd "$(dirname "$0")/.."

phase() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

phase "packages"
bash recipes/install.sh build stamps

phase "building build/release"
mkdir -p build
cmake -S . -B build/release -DCMAKE_BUILD_TYPE=Release >build/release.log 2>&1 &&
    cmake --build build/release --parallel --target vlmoe >>build/release.log 2>&1 || {
    tail -n 20 build/release.log
    echo "quickstart: the build failed; all of it is in build/release.log" >&2
    exit 1
}
vlmoe=build/release/vlmoe

phase "training"
run=runs/quickstart
trap 'echo "quickstart: stopped; run it again to go on" >&2; exit 130' INT TERM
"$vlmoe" train recipes/quickstart.yaml "$@" run.folder=runs run.name=quickstart
if [ ! -d "$run/model" ]; then
    echo "quickstart: $run/model is not there: training has not reached its last step;" \
        "run it again to go on" >&2
    exit 1
fi

phase "captions of 100 training images"
"$vlmoe" eval recipes/quickstart.yaml --model "$run/model" --training --samples 100 \
    --swap-images run.log=warn "$@" | tee "$run/captions.txt" | tail -n 32

phase "done"
echo "captions: $run/captions.txt"
echo "model:    $run/model   (Hugging Face format)"
echo "report:   $run/report.html   <- open this"
