# shellcheck shell=bash
# What every set-up step shares. Sourced, never run.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
TOOLS=$ROOT/.tools
SETUP=$ROOT/tools/setup
mkdir -p "$TOOLS/bin"
# Where it really is: checkouts may share one .tools through links.
TOOLS=$(cd "$TOOLS" && pwd -P)

say() { printf 'setup: %-10s %s\n' "$STEP" "$*"; }
die() {
    printf 'setup: %-10s FAILED: %s\n' "$STEP" "$*" >&2
    exit 1
}

# retry DESCRIPTION COMMAND...: a registry that hiccups must not fail a whole CI run.
retry() {
    local what=$1 attempt log
    shift
    log=$(mktemp)
    for attempt in 1 2 3 4; do
        if "$@" >"$log" 2>&1 </dev/null; then
            rm -f "$log"
            return 0
        fi
        say "$what failed (attempt $attempt of 4)"
        if [ "$attempt" -lt 4 ]; then sleep $((attempt * 3)); fi
    done
    tail -n 20 "$log" >&2
    rm -f "$log"
    die "$what failed four times; the last output is above. Is the package registry reachable?"
}

# A tool is up to date when its stamp holds what it was made of. The stamp is written last, so a
# set-up that was interrupted starts again. Virtual environments hold absolute paths, hence that of TOOLS.
stamp_of() { printf '%s\n' "${TOOLS%/.tools}" "$@" | sha256sum | cut -d' ' -f1; }
up_to_date() { [ -f "$TOOLS/$1/.stamp" ] && [ "$(cat "$TOOLS/$1/.stamp")" = "$2" ]; }
write_stamp() { printf '%s\n' "$2" >"$TOOLS/$1/.stamp"; }

# install_packages NAME...: from Debian, without starting what they bring.
install_packages() {
    local as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo -n)
    command -v apt-get >/dev/null || die "please install by hand: $* (there is no apt-get here)"
    retry "apt-get update" "${as_root[@]}" apt-get update -q
    # No cluster and no service of the system's own: the tests start theirs.
    retry "apt-get install" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
        apt-get install -q -y --no-install-recommends "$@"
}

# virtual_environment NAME: .tools/NAME from tools/setup/requirements-NAME.txt.
virtual_environment() {
    local name=$1 requirements=$SETUP/requirements-$1.txt stamp
    stamp=$(stamp_of "$(cat "$requirements")" "$(python3 --version)")
    if up_to_date "$name" "$stamp"; then
        say "present"
        return 0
    fi
    say "installing (Python packages of $(basename "$requirements"))"
    rm -rf "${TOOLS:?}/$name"
    python3 -m venv "$TOOLS/$name" >/dev/null || die "python3 -m venv failed"
    # A package that is not the one of its hash is not installed.
    retry "pip install" "$TOOLS/$name/bin/pip" install --no-input --disable-pip-version-check \
        --no-cache-dir --require-hashes --requirement "$requirements"
    write_stamp "$name" "$stamp"
}
