# shellcheck shell=bash
# OpenStack Keystone, for the tests of the backend `ironic` with tokens of a cloud.
virtual_environment keystone

# Its schema, its first account and its keys take seconds to make; each test copies a folder that is ready. What is in it is
# known to everybody who reads this: it is for loopback alone.
if [ ! -s "$TOOLS/keystone/prepared/keystone.sqlite" ]; then
    say "creating the database and the keys that tests copy"
    made=$TOOLS/keystone/prepared.tmp
    rm -rf "$made" "$TOOLS/keystone/prepared"
    (umask 077 && mkdir -p "$made/fernet" "$made/credential")
    printf '[database]\nconnection = sqlite:///%s/keystone.sqlite\n[fernet_tokens]\nkey_repository = %s/fernet\n' "$made" "$made" \
        >"$made/setup.conf"
    printf '[fernet_receipts]\nkey_repository = %s/fernet\n[credential]\nkey_repository = %s/credential\n' "$made" "$made" \
        >>"$made/setup.conf"
    # A password that is known needs no costly hash.
    printf '[identity]\npassword_hash_rounds = 4\n' >>"$made/setup.conf"
    manage() {
        "$TOOLS/keystone/bin/keystone-manage" --config-file "$made/setup.conf" "$@" >>"$TOOLS/keystone/setup.log" 2>&1 </dev/null ||
            die "keystone-manage $1 failed; see .tools/keystone/setup.log"
    }
    for keys in fernet credential; do
        manage "${keys}_setup" --keystone-user "$(id -un)" --keystone-group "$(id -gn)"
    done
    manage db_sync
    # Where it listens is written into the catalog of each copy.
    manage bootstrap --bootstrap-password 'correct horse' --bootstrap-region-id r1 --bootstrap-public-url http://127.0.0.1:1/v3 \
        --bootstrap-internal-url http://127.0.0.1:1/v3 --bootstrap-admin-url http://127.0.0.1:1/v3
    mv "$made" "$TOOLS/keystone/prepared"
fi
