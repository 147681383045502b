#!/usr/bin/env bash
# install.sh - the one list of what vlmoe needs from the distribution, and its set-up.
#
#     recipes/install.sh [build] [test] [stamps]
#
# Installs what is missing with apt-get (Debian, Ubuntu); touches nothing when all is
# there.  Where it cannot install, it names the packages and fails.
set -euo pipefail

# PACKAGE PROBE: how to see that it is there, whoever installed it.
build='
build-essential         command:make
build-essential         command:cc
cmake                   command:cmake
pkg-config              command:pkg-config
libopenblas-dev         library:openblas
libjansson-dev          library:jansson
libyaml-dev             library:yaml-0.1
libpcre2-dev            library:libpcre2-8
libutf8proc-dev         library:libutf8proc
libarchive-dev          library:libarchive
libxxhash-dev           library:libxxhash
libjpeg-dev             library:libjpeg
libpng-dev              library:libpng
libwebp-dev             library:libwebp
zlib1g-dev              library:zlib
'
test='
libcmocka-dev           library:cmocka
'
stamps='
tuxpaint-stamps-default folder:/usr/share/tuxpaint/stamps
'

there() {
    local what=${1#*:}
    case $1 in
    command:*) command -v "$what" >/dev/null ;;
    library:*) command -v pkg-config >/dev/null && pkg-config --exists "$what" ;;
    folder:*) [ -d "$what" ] ;;
    esac
}

missing_of() {
    while read -r package probe; do
        [ -z "$package" ] || there "$probe" || echo "$package"
    done | sort -u
}

install() {
    local admin=()
    if ! command -v apt-get >/dev/null; then
        echo "install: this machine has no apt-get; install these by hand: $*" >&2
        return 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "install: needs root and there is no sudo; as root run:" >&2
            echo "    apt-get update && apt-get install -y --no-install-recommends $*" >&2
            return 1
        fi
        admin=(sudo)
    fi
    echo "install: $*"
    local apt=("${admin[@]}" env DEBIAN_FRONTEND=noninteractive apt-get
               -qq -o Dpkg::Use-Pty=0 -o Acquire::Retries=3)
    "${apt[@]}" update || echo "install: package lists not updated; trying with old ones" >&2
    "${apt[@]}" install -y --no-install-recommends "$@" >/dev/null
}

list=
for group in "$@"; do
    case $group in
    build) list+=$build ;;
    test) list+=$test ;;
    stamps) list+=$stamps ;;
    *) echo "install: '$group' is none of: build test stamps" >&2; exit 2 ;;
    esac
done
missing=$(missing_of <<<"$list")
[ -n "$missing" ] || exit 0
# shellcheck disable=SC2086  # one word a package
install $missing || { echo "install: failed for: ${missing//$'\n'/ }" >&2; exit 1; }
missing=$(missing_of <<<"$list")
[ -z "$missing" ] || { echo "install: still missing: ${missing//$'\n'/ }" >&2; exit 1; }
