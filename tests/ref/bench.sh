#!/usr/bin/env bash
# bench.sh - what a user would pick instead, measured beside vlmoe: images, training steps,
# answers, model folders. Each script runs both sides in turns and prints ratios.
#
#     tests/ref/bench.sh [BUILD]      # default build/release; PYTHON names an interpreter
#
# Needs torch, torchvision, transformers, safetensors and Pillow; a quiet machine; and
# half an hour.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/release}
python=${PYTHON:-python3}
vlmoe=$build/vlmoe

part() { printf '\n== %s\n' "$1"; }

part "images to patches: ours as a share of transformers' time"
"$python" tests/ref/bench_image.py "$build/tests/test_image_speed"
part "training steps: ours as a share of PyTorch's"
"$python" tests/ref/bench_step.py "$vlmoe" 1
part "answers: tokens a second, ours over transformers'"
"$python" tests/ref/bench_generate.py "$vlmoe"
part "model folders: ours as a share of safetensors' time"
"$python" tests/ref/bench_folder.py "$vlmoe"
