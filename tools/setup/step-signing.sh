# shellcheck shell=bash
# GnuPG, which signs the checksums of a release; the tests sign with a key that they make.
if command -v gpg >/dev/null && command -v gpgv >/dev/null; then
    say "present"
else
    say "installing"
    install_packages gnupg gpgv
fi
