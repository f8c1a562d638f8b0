# shellcheck shell=bash
# Every crate of Cargo.lock, also those of other platforms: the tests of a release read them without a network.
if cargo fetch --locked --offline >/dev/null 2>&1 </dev/null; then
    say "present"
else
    say "fetching"
    retry "cargo fetch" cargo fetch --locked
fi
