# shellcheck shell=bash
# VERSION, OS_ARCH and TARGET of this checkout, as the plugin folder and the release archives name them.
VERSION=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
TARGET=${CARGO_TARGET_DIR:-target}
case "$(uname -s)" in
    Linux) os=linux ;;
    Darwin) os=darwin ;;
    *) echo "unknown operating system: $(uname -s)" >&2; exit 1 ;;
esac
case "$(uname -m)" in
    x86_64) arch=amd64 ;;
    aarch64 | arm64) arch=arm64 ;;
    *) echo "unknown architecture: $(uname -m)" >&2; exit 1 ;;
esac
# shellcheck disable=SC2034
OS_ARCH=${os}_${arch}
