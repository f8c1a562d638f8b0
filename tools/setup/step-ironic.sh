# shellcheck shell=bash
# OpenStack Ironic with its API, conductor and in-process messages in one program, for the tests of the backend `ironic`.
virtual_environment ironic

# Creating Ironic's schema takes seconds; each test copies a database that is ready.
if [ ! -s "$TOOLS/ironic/schema.sqlite" ]; then
    say "creating the database schema that tests copy"
    rm -f "$TOOLS/ironic/schema.tmp"
    printf '[database]\nconnection = sqlite:///%s\n' "$TOOLS/ironic/schema.tmp" >"$TOOLS/ironic/schema.conf"
    "$TOOLS/ironic/bin/ironic-dbsync" --config-file "$TOOLS/ironic/schema.conf" create_schema \
        >"$TOOLS/ironic/schema.log" 2>&1 || die "ironic-dbsync failed; see .tools/ironic/schema.log"
    mv "$TOOLS/ironic/schema.tmp" "$TOOLS/ironic/schema.sqlite"
fi
