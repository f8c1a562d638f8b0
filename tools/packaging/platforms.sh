# shellcheck shell=bash
# The platforms of a release, as registries name them, and what the compiler calls them.
# Linux programs are static (musl): they run on every distribution, also in the images of both hosts, which have no glibc.
PLATFORMS=(linux_amd64 linux_arm64 darwin_amd64 darwin_arm64 windows_amd64)

triple_of() {
    case "$1" in
        linux_amd64) echo x86_64-unknown-linux-musl ;;
        linux_arm64) echo aarch64-unknown-linux-musl ;;
        darwin_amd64) echo x86_64-apple-darwin ;;
        darwin_arm64) echo aarch64-apple-darwin ;;
        windows_amd64) echo x86_64-pc-windows-gnu ;;
        *)
            echo "unknown platform: $1 (known: ${PLATFORMS[*]})" >&2
            return 1
            ;;
    esac
}

# What a release makes when no platform is named: all of them are linked on one Linux machine. A program that was built
# elsewhere is given to tools/release as OS_ARCH=PROGRAM.
# shellcheck disable=SC2034
LINKED_HERE=("${PLATFORMS[@]}")
