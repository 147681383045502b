#!/usr/bin/env bash
# test_fresh_slow.sh - the README's first command on a machine that has nothing but Debian's
# smallest system; then, packages in, a build by a user without root and without network.
# test_fresh_slow.sh PROGRAM (not run: the new machine builds its own)
set -euo pipefail

skip() { printf 'skipped: %s\n[  SKIPPED ] test_fresh_slow\n' "$1"; exit 77; }

[ "$(id -u)" -eq 0 ] || skip "only root can make a machine in a folder"
command -v debootstrap >/dev/null || skip "debootstrap is not installed"
mirror=$(grep -ohsE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list \
    /etc/apt/sources.list.d/* | sed -n '1s| *$||p') || true
[ -n "$mirror" ] || skip "this machine names no Debian mirror"

machine=$(mktemp -d)
chmod 755 "$machine"                    # it is the root folder of others too
finish() {
    umount -l "$machine/proc" "$machine/dev" 2>/dev/null || true
    rm -rf --one-file-system "$machine"
}
trap finish EXIT

inside() {                              # COMMAND, by root in the new machine
    chroot "$machine" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
        TERM=dumb bash -c "$1"
}

release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
debootstrap --variant=minbase "${release:-stable}" "$machine" "$mirror" >"$machine.log" 2>&1 || {
    tail -n 3 "$machine.log"
    exit 1
}
rm -f "$machine.log"
mount -t proc proc "$machine/proc"
mount --rbind /dev "$machine/dev"
mount --make-rslave "$machine/dev"
cp /etc/resolv.conf /etc/hosts "$machine/etc/"
mkdir -p "$machine/home/project"
git archive HEAD | tar -x -C "$machine/home/project"

inside 'cd /home/project && ./recipes/quickstart.sh train.steps=20'
for file in model/model.safetensors report.html captions.txt; do
    [ -s "$machine/home/project/runs/quickstart/$file" ] ||
        { echo "quickstart left no runs/quickstart/$file"; exit 1; }
done

# The same again as somebody else, in a folder of theirs, with no network to fetch from.
inside 'useradd --create-home user && cd /home/project && rm -rf build runs &&
        cp -r . /home/user/project && chown -R user: /home/user/project &&
        rm -rf /var/lib/apt/lists /home/project'
unshare --net chroot "$machine" su - user -c \
    'cd project && ./recipes/quickstart.sh train.steps=3'
echo "the first command works on a bare machine, then without root and network"
