# shellcheck shell=bash
# Emulators: they start programs of another platform on this machine, whose platform is OS_ARCH (tools/platform.sh).

# emulation PLATFORM: sets emulators (commands, the first one found is used) and emulator_packages (Debian packages that bring
# them). Fails where no emulator could start the program.
emulation() {
    # shellcheck disable=SC2034
    case "$OS_ARCH/$1" in
        linux_amd64/linux_arm64) emulators=(qemu-aarch64-static qemu-aarch64) emulator_packages=(qemu-user-static) ;;
        linux_arm64/linux_amd64) emulators=(qemu-x86_64-static qemu-x86_64) emulator_packages=(qemu-user-static) ;;
        linux_amd64/windows_amd64) emulators=(wine) emulator_packages=(wine wine64) ;;
        *) return 1 ;;
    esac
}

# emulator_of PLATFORM: prints the path of its emulator; fails where none is installed.
emulator_of() {
    local emulator
    emulation "$1" || return 1
    for emulator in "${emulators[@]}"; do
        command -v "$emulator" && return 0
    done
    return 1
}
