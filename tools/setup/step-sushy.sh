# shellcheck shell=bash
# sushy-emulator: a Redfish service that is not ours, for the acceptance tests, with machines in its own memory or in that of
# libvirt's hypervisor for tests, which needs no daemon. libvirt's bindings are built from C.
packages=()
command -v pkg-config >/dev/null || packages+=(pkg-config)
[ -e /usr/include/libvirt/libvirt.h ] || packages+=(libvirt-dev)
[ -e "$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["include"])')/Python.h" ] || packages+=(python3-dev)
if [ ${#packages[@]} -gt 0 ]; then
    say "installing ${packages[*]}"
    install_packages "${packages[@]}"
fi
virtual_environment sushy
