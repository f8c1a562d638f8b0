# shellcheck shell=bash
# zig, as the compiler of C and the linker for every platform of a release, and the cargo command that uses it.
virtual_environment release
