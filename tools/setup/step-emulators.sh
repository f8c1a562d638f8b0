# shellcheck shell=bash
# Emulators, from Debian: tools/packaging/try runs programs of other platforms with them. PLATFORMS names those of the release
# (by default all). With ALLOW_NOT_RUN=1 a release needs none, and nothing is installed.
read -ra released <<<"${PLATFORMS:-}"
# shellcheck source=tools/packaging/platforms.sh
source tools/packaging/platforms.sh
# shellcheck source=tools/platform.sh
source tools/platform.sh
# shellcheck source=tools/packaging/emulators.sh
source tools/packaging/emulators.sh
[ ${#released[@]} -gt 0 ] || released=("${PLATFORMS[@]}")
packages=()
for platform in "${released[@]}"; do
    platform=${platform%%=*}
    if emulation "$platform" && ! emulator_of "$platform" >/dev/null; then
        packages+=("${emulator_packages[@]}")
    fi
done
if [ ${#packages[@]} -eq 0 ]; then
    say "present"
elif [ "${ALLOW_NOT_RUN:-}" = 1 ]; then
    say "missing, and not installed (ALLOW_NOT_RUN=1): ${packages[*]}"
else
    say "installing ${packages[*]}"
    install_packages "${packages[@]}"
fi
