# shellcheck shell=bash
# The platforms of a release, as registries name them, and what the compiler calls them. A release makes all on one Linux machine.
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
