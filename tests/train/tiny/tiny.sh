# tiny.sh - what the end-to-end scripts share: a temporary folder with the tiny model, its
# data and a recipe, and how runs are started, compared and judged.  Sourced with the
# program's path in $1, in the repository's root.
set -uo pipefail

vlmoe=$(realpath "${1:?the path of the program}")
export OPENBLAS_NUM_THREADS=1           # tests run side by side

tiny=$(mktemp -d)
trap 'rm -rf "$tiny"' EXIT
failures=0

# tiny_fail TEXT...: counts; the test goes on to its other checks
tiny_fail() {
    echo "FAILED: $*" >&2
    failures=$((failures + 1))
}

# tiny_end: the script's last line
tiny_end() {
    [ "$failures" -eq 0 ] || { echo "$failures checks failed" >&2; exit 1; }
    echo "all checks passed"
}

# tiny_model FOLDER: config and tokenizer, no weights
tiny_model() {
    mkdir -p "$1" &&
        cp tests/train/tiny/config.json recipes/quickstart/tokenizer.json \
            recipes/quickstart/tokenizer_config.json \
            recipes/quickstart/chat_template.jinja "$1"
}

# tiny_data FOLDER COUNT: images of many kinds and sizes, each with a caption
tiny_data() {
    local file name n=0
    mkdir -p "$1"
    for file in tests/data/image/*.*; do
        name=${file##*/}
        [ "$name" = animation.webp ] && continue
        [ $((n++)) -lt "$2" ] || break
        cp "$file" "$1/$n-$name"
        echo "A ${name%%.*} picture, number $n." | tr _ ' ' >"$1/$n-${name%.*}.txt"
    done
}

# tiny_recipe FILE: trains the tiny model on $tiny/data in rows small enough that a step
# holds several, and samples wait for their rows
tiny_recipe() {
    cat >"$1" <<RECIPE
run: {name: run, folder: $tiny/runs, seed: 7, log: warn}
model: {path: $tiny/model}
data:
  sources: [{path: $tiny/data, format: folder, prompt: "What is this?"}]
  min_pixels: 256
  max_pixels: 4096
  window: 8
batch: {tokens: 96, patches: 192, samples: 8, images: 8, rows: 3}
optim: {lr: 1e-2, warmup: 4, decay: 0.01}
train: {steps: 6}
device: {threads: 1}
report: {tensorboard: false}
RECIPE
}

# tiny_setup: all three in $tiny
tiny_setup() {
    tiny_model "$tiny/model" && tiny_data "$tiny/data" 64 && tiny_recipe "$tiny/recipe.yaml"
}

# train NAME [section.key=value ...]: a run in $tiny/runs/NAME, its words in $tiny/NAME.log
train() {
    local name=$1
    shift
    "$vlmoe" train "$tiny/recipe.yaml" run.name="$name" "$@" >"$tiny/$name.log" 2>&1
}

# train_well NAME ...: the same, and it must succeed
train_well() {
    train "$@" && return
    tiny_fail "train $*: exit code $?: $(tail -n 3 "$tiny/$1.log")"
    return 1
}

# untimed FILE [KEY|KEY...]: lines of metrics without what a clock decides, and what was set
# otherwise on the way (and other keys)
untimed() {
    sed -E "s/\"changed\":\\[[^]]*\\],//; s/\"(step_ms|data_wait_ms|useful_tokens_per_s_per_gpu|model_tflops_per_gpu${2:+|$2})\":[^,}]*,?//g" "$1"
}

# same_metrics A B [KEY|KEY...]: every step of two runs, bit for bit
same_metrics() {
    local a="$tiny/runs/$1/metrics.jsonl" b="$tiny/runs/$2/metrics.jsonl"
    cmp -s <(untimed "$a" "${3:-}") <(untimed "$b" "${3:-}") && [ -s "$a" ] && return
    tiny_fail "metrics of $1 and $2 differ: $(diff <(untimed "$a" "${3:-}") \
        <(untimed "$b" "${3:-}") | head -c 2000)"
}

# same_model A B: the exported weights, byte for byte
same_model() {
    cmp "$tiny/runs/$1/model/model.safetensors" "$tiny/runs/$2/model/model.safetensors" ||
        tiny_fail "the models of $1 and $2 differ"
}

# metric FILE KEY: its values, a line each
metric() {
    sed -nE "s/.*\"$2\":\"?([^,}\"]*).*/\1/p" "$1"
}

# holds FILE TEXT [WHAT]: the file holds the text
holds() {
    grep -qF -- "$2" "$1" || tiny_fail "${3:-$1}: no '$2' in: $(tail -n 5 "$1")"
}

# expected CODE WHAT CODE-GOT LOG TEXT...: how a command ended, and what it said
expected() {
    local want=$1 what=$2 got=$3 log=$4 text
    shift 4
    [ "$got" -eq "$want" ] ||
        tiny_fail "$what: exit code $got, expected $want: $(tail -n 3 "$log")"
    for text; do holds "$log" "$text" "$what"; done
}

# train_expected CODE NAME CODE-GOT TEXT...: the same of the run NAME
train_expected() {
    expected "$1" "$2" "$3" "$tiny/$2.log" "${@:4}"
}
