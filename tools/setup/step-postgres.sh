# shellcheck shell=bash
# PostgreSQL and a transaction pooler for it, from Debian.
packages=()
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || packages+=(postgresql)
command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || packages+=(pgbouncer)
if [ ${#packages[@]} -eq 0 ]; then
    say "present"
else
    say "installing ${packages[*]}"
    install_packages "${packages[@]}"
fi
