# shellcheck shell=bash
# The few Debian packages a fresh machine may lack: a C compiler (the cryptography and SQLite are
# built from C) and Python's venv module.
packages=()
command -v cc >/dev/null || packages+=(build-essential)
python3 -c 'import venv, ensurepip' 2>/dev/null || packages+=(python3 python3-venv)
if [ ${#packages[@]} -eq 0 ]; then
    say "present"
else
    say "installing ${packages[*]}"
    install_packages "${packages[@]}"
fi
for command in cargo python3; do
    command -v "$command" >/dev/null || die "$command is not on the PATH; CONTRIBUTING.md lists what must be there"
done
# rust-toolchain.toml names the toolchain; rustup may be set up not to install it by itself.
if command -v rustup >/dev/null && ! { cargo --version && cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1; then
    say "installing the Rust toolchain of rust-toolchain.toml"
    retry "rustup toolchain install" rustup toolchain install
fi
